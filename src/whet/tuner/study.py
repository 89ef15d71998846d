"""Keep every trial in an Optuna storage, so that a search can stop, go on, and be shared."""

import functools
import json
import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
import psutil
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from pydantic import ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from whet.core.recipe import Recipe
from whet.errors import OutputError, StudyError, reason
from whet.files import check_file
from whet.tuner.command import without_password
from whet.tuner.facts import Facts, KnownFacts
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space

RECORD = "record"
FACTS = "facts"
REPEATED = "repeated"
FILE = "study.db"
P = ParamSpec("P")
T = TypeVar("T")

_ERRORS = (SQLAlchemyError, StorageInternalError, ValidationError)
_WAITS_S = (0.1, 0.3, 0.9)  # seconds to wait before each retry of opening a storage

optuna.logging.set_verbosity(optuna.logging.ERROR)


def _telling(method: Callable[Concatenate["Study", P], T]) -> Callable[Concatenate["Study", P], T]:
    """Wrap a method of Study so that it raises StudyError where the storage fails or holds an invalid record."""

    @functools.wraps(method)
    def told(self: "Study", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except _ERRORS as error:
            raise _error(self._storage, error) from error

    return told


class Study:
    """Hold the trials of one target under one objective and one set of limits."""

    def __init__(self, study: optuna.Study, storage: str = "") -> None:
        self._study = study
        self._storage = storage
        self._open: dict[int, optuna.Trial] = {}

    @classmethod
    def open(cls, storage: str, name: str, *, must_exist: bool = False) -> "Study":
        """Open a study in the storage with this URL, or create it where there is none.

        Raises:
            StudyError: The storage is damaged or out of reach, or holds no such study.
        """
        try:
            return cls(_open_or_create(storage, name, must_exist=must_exist), storage)
        except (*_ERRORS, RuntimeError, ImportError, ValueError, AssertionError, KeyError) as error:
            raise _error(storage, error) from error

    @staticmethod
    def check_storage(storage: str) -> None:
        """Check, before a search and without making a new file, that a storage can be used.

        Raises:
            StudyError: It cannot be used.
        """
        try:
            url = make_url(storage)
            is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
            path = Path(url.database or "")
            if is_file:
                check_file(path)
                if path.exists() and not os.access(path, os.W_OK):
                    raise OutputError(f"{path} cannot be written: it is read-only")
            if not is_file or path.exists():
                optuna.get_all_study_names(storage)
        except (*_ERRORS, OutputError, RuntimeError, ImportError, ValueError, AssertionError, KeyError) as error:
            raise _error(storage, error) from error

    @property
    @_telling
    def facts(self) -> KnownFacts | None:
        """Return what is known of the target, which is kept with the study; None in a new study."""
        text = self._study.user_attrs.get(FACTS)
        return KnownFacts.model_validate_json(text) if text is not None else None

    @facts.setter
    @_telling
    def facts(self, facts: Facts) -> None:
        self._study.set_user_attr(FACTS, json.dumps(facts.kept()))

    @_telling
    def records(self) -> list[TrialRecord]:
        """Return every trial that ended or runs, in order. One whose process is gone is given up, to be tried again."""
        records = []
        for trial in self._study.get_trials(deepcopy=False):
            text = trial.user_attrs.get(RECORD)
            if text is None:
                continue
            record = TrialRecord.model_validate_json(text)
            if trial.state == TrialState.RUNNING:
                if _is_gone(trial.user_attrs):
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                    continue
            elif record.status == "running":
                continue  # given up earlier
            records.append(record)
        return records

    @_telling
    def begin(self, recipe: Recipe | None, space: Space, predicted: float | None = None) -> tuple[int, Recipe]:
        """Start the next trial with this recipe, or with one that the sampler chooses. Return its number and recipe."""
        # The seed is the number of trials that have ended, so that a resumed search chooses as an uninterrupted one
        # would. Interrupted trials don't count; recipes that the sampler chose a second time do.
        num_before = sum(_has_ended(trial.user_attrs) for trial in self._study.get_trials(deepcopy=False))
        self._study.sampler = optuna.samplers.TPESampler(seed=num_before, n_startup_trials=5)
        if recipe is not None:
            self._study.enqueue_trial(space.parameters(recipe))
        trial = self._study.ask()
        chosen = space.recipe(trial.suggest_categorical)
        record = TrialRecord(number=trial.number, steps=chosen.steps, status="running", predicted=predicted)
        trial.set_user_attr("host", socket.gethostname())
        trial.set_user_attr("pid", os.getpid())
        trial.set_user_attr(RECORD, record.model_dump_json())
        self._open[trial.number] = trial
        return trial.number, chosen

    @_telling
    def end(self, record: TrialRecord, value: float | None) -> None:
        """Record a trial's outcome. The value is minimised; None where there is none."""
        self._open.pop(record.number).set_user_attr(RECORD, record.model_dump_json())
        if value is None:
            self._study.tell(record.number, state=TrialState.FAIL)
        else:
            self._study.tell(record.number, value)

    @_telling
    def pass_over(self, number: int) -> None:
        """End a trial whose recipe has been measured before."""
        self._open[number].set_user_attr(REPEATED, True)
        self.give_up(number)

    @_telling
    def give_up(self, number: int) -> None:
        """Leave a trial that was interrupted, to be tried again."""
        self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def default_storage(directory: Path) -> str:
    return f"sqlite:///{directory / FILE}"


def _has_ended(attributes: Mapping[str, Any]) -> bool:
    """Return whether a trial counts for the sampler's seed: it ended, or its recipe was known."""
    text = attributes.get(RECORD)
    return REPEATED in attributes or (text is not None and TrialRecord.model_validate_json(text).status != "running")


def _is_gone(attributes: Mapping[str, Any]) -> bool:
    """Return whether a trial's process ran on this machine and no longer exists."""
    return attributes.get("host") == socket.gethostname() and not psutil.pid_exists(int(attributes.get("pid", -1)))


def _error(storage: str, error: Exception) -> StudyError:
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    why = reason(cause).removesuffix(".")
    return StudyError(f"the study {without_password(storage)} cannot be used ({why}); {_remedy(storage, why)}")


def _remedy(storage: str, why: str) -> str:
    if storage.startswith("sqlite:"):
        if any(word in why for word in ("unable to open", "readonly", "locked", "full", "cannot be written")):
            return "there must be room for it, and no other program may hold it; file and directory must be writable"
        return "remove it to start anew"
    return "the URL must be one that SQLAlchemy knows, its server up, and its driver installed (PostgreSQL's: psycopg2)"


def _open_or_create(storage: str, name: str, *, must_exist: bool) -> optuna.Study:
    """Open or create a study, with retries: another machine may be creating the same tables at this moment."""
    for wait_s in _WAITS_S:
        try:
            return _opened(storage, name, must_exist=must_exist)
        except (IntegrityError, OperationalError, StorageInternalError):
            time.sleep(wait_s * random.uniform(0.5, 1.5))
    return _opened(storage, name, must_exist=must_exist)


def _opened(storage: str, name: str, *, must_exist: bool) -> optuna.Study:
    """Open or create a study, or raise StudyError where it must exist and does not."""
    if must_exist and name not in optuna.get_all_study_names(storage):
        raise StudyError(
            f"{without_password(storage)} holds no search for this target as it is now, with this objective "
            "and these limits; leave out --resume"
        )
    return optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
