"""Let several processes search in one study: who takes part, who is gone, and which one measures the finals.

Each process keeps an entry of its own in the study and changes it every few seconds. Another one is gone if its process
has ended, where that can be seen from here, or if its entry has not changed for half a minute. That is measured by the
clock of who looks, so that clocks need not agree. The finals are measured by one process, after all others have ended
their trials: of those that wait, the one with the first name. Where it is gone before it has told a result, the next
one takes its place.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import optuna
import psutil
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from whet.measure.host import host_id
from whet.tuner.storage import telling

BEAT_S = 5.0
GONE_S = 30.0  # without a beat
_LOOK_S = 0.5

_MEMBER, _RESULT = "member ", "result"  # beginnings of the names of a study's entries

State = Literal["searching", "waiting", "finals", "left"]


class Presence(BaseModel, frozen=True):
    """Describe a process that takes part in a search.

    Attributes:
        host: The computer, as host_id says it.
        at: What people call it.
        beat: Counts up while the process lives.
        out: The directory for its results.
    """

    host: str
    at: str
    pid: int
    out: str
    state: State = "searching"
    beat: int = 0

    @property
    def words(self) -> str:
        does = "measures the finals" if self.state == "finals" else "still searches"
        return f"process {self.pid} on {self.at}, which {does}"


class Members:
    """Take part in a search that other processes share, until `leave` is called."""

    def __init__(self, study: optuna.Study, storage: str, out: Path) -> None:
        self.storage = storage
        self.name = uuid.uuid4().hex
        self._study = study
        self._me = Presence(host=host_id(), at=socket.gethostname(), pid=os.getpid(), out=str(out))
        self._for: list[str] = []  # those that wait for the finals of this process
        self._seen: dict[str, tuple[int, float]] = {}  # by name: the last beat, and when it was first seen
        self._write = threading.Lock()
        self._has_left = threading.Event()
        self._show("searching")
        self._beating = threading.Thread(target=self._beat, name="whet-beat", daemon=True)
        self._beating.start()

    def is_gone(self, name: str) -> bool:
        """Return whether a process that took part no longer does."""
        return name != self.name and name not in self._others()

    @telling
    def leave(self) -> None:
        self._has_left.set()
        self._beating.join()
        self._show("left")

    @telling
    def finals(self, report: Callable[[str], None]) -> dict[str, Any] | None:
        """Wait until all others have ended their trials, and return None where this process measures the finals.

        Where another process has measured them, return the fields of its result, with `finals_on` set.

        Args:
            report: Called with a sentence when waiting begins, and with "" when it ends.
        """
        self._show("waiting")
        said = ""
        while True:
            others = self._others()
            result: dict[str, Any] | None = json.loads(self._study.user_attrs.get(_RESULT, "{}"))
            if result and self.name in result["for"]:  # else its finals began before this process had ended its trials
                break
            at_work = next((one for one in others.values() if one.state != "waiting"), None)
            if at_work is None and all(self.name < name for name in others):
                self._show("finals")
                if not any(one.state == "finals" for one in self._others().values()):
                    self._for, result = list(others), None
                    break
                self._show("waiting")  # two began at the same moment
            if at_work is not None and at_work.words != said:
                said = at_work.words
                report(f"Waiting for {said}.")
            time.sleep(_LOOK_S)
        if said:
            report("")
        return result

    @telling
    def tell(self, result: Mapping[str, Any]) -> None:
        """Give the fields of the finals' result to all others that wait for it."""
        by = f"process {self._me.pid} on {self._me.at}, in {self._me.out}"
        self._study.set_user_attr(_RESULT, json.dumps({**result, "finals_on": by, "for": self._for}))

    def _others(self) -> dict[str, Presence]:
        """Return the other processes that take part, by name."""
        now, found = time.monotonic(), {}
        for key, text in self._study.user_attrs.items():
            name = key.removeprefix(_MEMBER)
            if name in (key, self.name):
                continue
            one = Presence.model_validate_json(text)
            if one.state == "left":
                continue
            beat, since = self._seen.get(name, (-1, now))
            if beat != one.beat:
                since = now
            self._seen[name] = (one.beat, since)
            is_here = one.host == host_id()
            if now - since <= GONE_S and not (is_here and not psutil.pid_exists(one.pid)):
                found[name] = one
        return found

    def _show(self, state: State | None = None) -> None:
        """Write this process's entry, with another state or as it was."""
        with self._write:
            me = self._me
            self._me = me.model_copy(update={"state": state or me.state, "beat": me.beat + 1})
            self._study.set_user_attr(f"{_MEMBER}{self.name}", self._me.model_dump_json())

    def _beat(self) -> None:
        while not self._has_left.wait(BEAT_S):
            with contextlib.suppress(SQLAlchemyError, optuna.exceptions.StorageInternalError):
                self._show()  # what is wrong with the storage is told where the search itself meets it
