"""Keep every trial in an Optuna storage, so that a search can stop, go on, and be shared."""

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import TrialState
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError, OperationalError

from whet.core.recipe import Recipe
from whet.errors import OutputError, StudyError
from whet.files import check_file
from whet.measure.host import is_here, lives, this_process
from whet.tuner.command import without_password
from whet.tuner.facts import Facts, KnownFacts
from whet.tuner.members import Members
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space
from whet.tuner.storage import UNUSABLE, connected, storage_error, study_names, telling

RECORD = "record"
FACTS = "facts"
REPEATED = "repeated"
FILE = "study.db"

_WAITS_S = (0.1, 0.3, 0.9)  # seconds to wait before each retry of opening a storage

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Study:
    """Hold the trials of one target under one objective and one set of limits."""

    def __init__(self, study: optuna.Study, storage: str = "") -> None:
        self._study = study
        self.storage = storage
        self.members: Members | None = None
        self._open: dict[int, optuna.Trial] = {}
        self._beginning = threading.Lock()

    @classmethod
    def open(cls, storage: str, name: str, *, must_exist: bool = False) -> "Study":
        """Open a study in the storage with this URL, or create it where there is none.

        Raises:
            StudyError: The storage is damaged or out of reach, or holds no such study.
        """
        try:
            return cls(_open_or_create(storage, name, must_exist=must_exist), storage)
        except UNUSABLE as error:
            raise storage_error(storage, error) from error

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
                study_names(storage)
        except UNUSABLE as error:
            raise storage_error(storage, error) from error

    @contextlib.contextmanager
    def shared(self, out: Path) -> Iterator[None]:
        """Take part in a search that other processes may share, with results in `out`."""
        self.members = self._join(out)
        try:
            yield
        finally:
            self.members.leave()

    @telling
    def _join(self, out: Path) -> Members:
        return Members(self._study, self.storage, out)

    @property
    @telling
    def facts(self) -> KnownFacts | None:
        """Return what is known of the target, which is kept with the study; None in a new study."""
        text = self._study.user_attrs.get(FACTS)
        return KnownFacts.model_validate_json(text) if text is not None else None

    @facts.setter
    @telling
    def facts(self, facts: Facts) -> None:
        self._study.set_user_attr(FACTS, json.dumps(facts.kept()))

    @telling
    def records(self) -> list[TrialRecord]:
        """Return every trial that ended or runs, in order. One whose process is gone is given up, to be tried again."""
        records = []
        for trial in self._study.get_trials(deepcopy=False):
            text = trial.user_attrs.get(RECORD)
            if text is None:
                continue
            record = TrialRecord.model_validate_json(text)
            if trial.state == TrialState.RUNNING:
                if self._is_gone(trial.user_attrs):
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                    continue
            elif record.status == "running":
                continue  # given up earlier
            records.append(record)
        return records

    def _is_gone(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether a trial's process has ended, as far as can be told from here."""
        if self.members is not None and "member" in attributes:
            return self.members.is_gone(attributes["member"])
        return is_here(attributes) and not lives(attributes)

    @telling
    def will_end(self, number: int) -> bool:
        """Return whether a trial that runs will end or be given up: it can be told from here if its process is gone."""
        attributes = self._study.get_trials(deepcopy=False)[number].user_attrs
        return (self.members is not None and "member" in attributes) or is_here(attributes)

    @telling
    def begin(self, recipe: Recipe | None, space: Space, predicted: float | None = None) -> tuple[int, Recipe]:
        """Start the next trial with this recipe, or with one that the sampler chooses. Return its number and recipe."""
        with self._beginning:
            return self._begin(recipe, space, predicted)

    def _begin(self, recipe: Recipe | None, space: Space, predicted: float | None) -> tuple[int, Recipe]:
        # The seed is the number of trials that have ended, so that a resumed search chooses as an uninterrupted one
        # would. Interrupted trials don't count; recipes that the sampler chose a second time do.
        num_before = sum(_has_ended(trial.user_attrs) for trial in self._study.get_trials(deepcopy=False))
        self._study.sampler = optuna.samplers.TPESampler(seed=num_before, n_startup_trials=5)
        if recipe is not None:
            self._study.enqueue_trial(space.parameters(recipe))
        trial = self._study.ask()
        chosen = space.recipe(trial.suggest_categorical)
        record = TrialRecord(number=trial.number, steps=chosen.steps, status="running", predicted=predicted)
        for key, value in this_process().items():
            trial.set_user_attr(key, value)
        if self.members is not None:
            trial.set_user_attr("member", self.members.name)
        trial.set_user_attr(RECORD, record.model_dump_json())
        self._open[trial.number] = trial
        return trial.number, chosen

    def is_taken(self, number: int, recipe: Recipe) -> bool:
        """Return whether another process, or thread, began the same recipe a moment before this trial."""
        return any(record.number < number and record.key == recipe.key for record in self.records())

    @telling
    def end(self, record: TrialRecord, value: float | None) -> None:
        """Record a trial's outcome. The value is minimised; None where there is none.

        Where other processes took this one for dead, the trial is theirs to try again, and the outcome is dropped.
        """
        try:
            self._open.pop(record.number).set_user_attr(RECORD, record.model_dump_json())
        except UpdateFinishedTrialError:
            return
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self._study.tell(record.number, value, state=state, skip_if_finished=True)

    @telling
    def pass_over(self, number: int) -> None:
        """End a trial whose recipe has been measured before, or is being measured."""
        self._open[number].set_user_attr(REPEATED, True)
        self.give_up(number)

    @telling
    def give_up(self, number: int) -> None:
        """Leave a trial that was interrupted, to be tried again."""
        self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)


def default_storage(directory: Path) -> str:
    return f"sqlite:///{directory / FILE}"


def _has_ended(attributes: Mapping[str, Any]) -> bool:
    """Return whether a trial counts for the sampler's seed: it ended, or its recipe was known."""
    text = attributes.get(RECORD)
    return REPEATED in attributes or (text is not None and TrialRecord.model_validate_json(text).status != "running")


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
    if must_exist and name not in study_names(storage):
        raise StudyError(
            f"{without_password(storage)} holds no search for this target as it is now, with this objective "
            "and these limits; leave out --resume"
        )
    return optuna.create_study(storage=connected(storage), study_name=name, load_if_exists=True)
