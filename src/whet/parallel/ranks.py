"""Let the processes of a training agree on values, and know which of them live and what they do.

What processes tell each other here goes through torchrun's store as JSON: nothing is unpickled, no collective is
needed, and a thread may do it while the training's collectives go on. The first process watches the others and passes
on what all have said, and the others watch the first, so that a wait costs few requests of however many processes.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import RanksError, WhetError
from whet.measure.host import lives, this_process

BEAT_S = 1.0  # between two signs of life
SILENT_S = 5.0  # after which a process that broke off a collective counts as gone
POLL_S = 1e-4, 1e-2  # between two looks for an answer, at first and at most
_SLOWEST_S = 0.25  # between two looks in a long wait
_CAME = "came"  # the key that lists the processes that gave a sign of life
_FIRST_S = 2.0  # for which the others wait longer than the first process, which knows better who is missing


@dataclass
class Ranks:
    """Stand for the processes that train together; one process alone is a special case.

    Attributes:
        rank: This process, counted from 0.
        local_rank: This process among those of its machine.
        timeout_s: The seconds after which a process that does not answer ends the run.
        gone_s: The seconds without a sign of life after which a process that others wait for counts as gone, unless it
            is on this machine and lives.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    timeout_s: float = 600.0
    gone_s: float = 12.0
    _store: Any = None
    _counts: dict[str, int] = field(default_factory=dict)
    _now: str = "at its start"
    _known: set[int] = field(default_factory=set)
    _has_come: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_first(self) -> bool:
        """Return whether this is the process that talks to people and writes the files of all."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.world_size == 1

    def at(self, what: str) -> None:
        """Say what this process does now, as "in step 3": others name it where they wait in vain."""
        self._now = what

    def gather(self, name: str, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return the value of each process, which JSON can hold, in the order of ranks. All must call it.

        Args:
            name: What is gathered. Calls with one name are matched in their order; a thread needs a name of its own.

        Raises:
            RanksError: A process failed, or does not answer in time.
        """
        if self.is_alone:
            return [value]
        with self._lock:
            number = self._counts[name] = self._counts.get(name, 0) + 1
        keys = [f"{name}/{number}/{rank}" for rank in range(self.world_size)]
        of_all = f"{name}/{number}"
        self._store.set(keys[self.rank], json.dumps(value))
        self._wait(keys, of_all, f"for {name}", timeout_s or self.timeout_s)
        if self.is_first:
            found = [json.loads(one) for one in self._store.multi_get(keys)]
            self._store.set(of_all, json.dumps(found))
        else:
            found = json.loads(self._store.get(of_all))
        if number > 2:  # everybody has answered the call before, and so has read the one before that
            self._store.delete_key(f"{name}/{number - 2}/{self.rank}")
            if self.is_first:
                self._store.delete_key(f"{name}/{number - 2}")
        return found

    def of_first(self, name: str, value: Any) -> Any:
        """Return the value of the first process; the others' is not read."""
        return self.gather(name, value if self.is_first else None)[0]

    def all_succeed(self, name: str, action: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """Do something on each process, and return its result; where it fails on one, all raise.

        Raises:
            WhetError: It failed here.
            RanksError: It failed on another process.
        """
        found, _ = self._tried(name, action, timeout_s, tells=False)
        return found

    def all_tell(self, name: str, action: Callable[[], Any]) -> list[Any]:
        """Do something on each process, and return the results of all, which JSON can hold; see all_succeed."""
        return self._tried(name, action, None, tells=True)[1]

    def first_tells(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something on the first process, and return its result on all, which JSON can hold; see all_succeed."""
        return self.all_tell(name, action if self.is_first else lambda: None)[0]

    def _tried(
        self, name: str, action: Callable[[], Any], timeout_s: float | None, *, tells: bool
    ) -> tuple[Any, list[Any]]:
        error: WhetError | None = None
        found = None
        try:
            found = action()
        except WhetError as failed:
            error = failed
        told = self.gather(name, [None if error is None else str(error), found if tells else None], timeout_s)
        rank, fault = next(((rank, fault) for rank, (fault, _) in enumerate(told) if fault is not None), (0, None))
        if fault is None:
            return found, [result for _, result in told]
        if error is not None and self.is_first:
            raise error
        raise RanksError(fault if rank == 0 else f"rank {rank}: {fault}", is_told=not self.is_first) from error

    def first_does(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something on the first process, and return its result there; where it fails, all raise."""
        return self.all_succeed(name, action if self.is_first else lambda: None)

    def _wait(self, keys: list[str], of_all: str, what: str, timeout_s: float) -> None:
        """Wait for the keys of all processes on the first one, and on the others for the key that it sets then."""
        awaited = dict(enumerate(keys)) if self.is_first else {0: of_all}
        limit = timeout_s if self.is_first else timeout_s + _FIRST_S
        pulse, told = Pulse(self, list(awaited)), set[int]()
        began, pause = time.monotonic(), POLL_S[0]
        look_at = began + BEAT_S
        while not self._store.check(list(awaited.values())):
            if (failure := self.failure()) is not None:
                raise RanksError(failure, is_told=self.rank > 0)
            now = time.monotonic()
            if now > look_at:
                look_at = now + BEAT_S
                silent = [rank for rank in pulse.silent(self.gone_s) if not self._store.check([awaited[rank]])]
                if gone := pulse.gone(silent):
                    raise self.without(gone)
                self._warn(pulse, [rank for rank in silent if rank not in told], limit)
                told.update(silent)
            if now - began > limit:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])] or list(awaited)
                self.fail(self.late(missing, what, timeout_s))
                raise self.ended(missing)
            time.sleep(pause)
            pause = min(1.5 * pause, max(POLL_S[1], min(0.05 * (now - began), _SLOWEST_S)))

    def _warn(self, pulse: "Pulse", silent: list[int], limit_s: float) -> None:
        """Tell people of processes that live and give no sign of it."""
        if silent and (self.is_first or self._is_foremost(f"silent/{silent}")):
            told = "; ".join(f"rank {rank} {_doing(pulse.beats.get(rank))}" for rank in silent)
            sys.stderr.write(f"{told}: its process lives, and does not answer; waiting for up to {limit_s:g} s\n")
            sys.stderr.flush()

    def _is_foremost(self, what: str) -> bool:
        """Return whether this process is the first in time to ask for something, which one of several is to do."""
        return bool(self._store.compare_set(what, "", str(self.rank)) == str(self.rank).encode())

    def leave(self) -> None:
        """Leave the others, having read all that is needed; the first process, which may hold the store, goes last."""
        if self.is_alone:
            return
        with contextlib.suppress(RuntimeError):
            if not self.is_first:
                self._store.set(f"left/{self.rank}", "1")
                return
            until = time.monotonic() + SILENT_S
            keys = [f"left/{rank}" for rank in range(1, self.world_size)]
            while not self._store.check(keys) and time.monotonic() < until:
                time.sleep(POLL_S[1])

    def without(self, gone: list[int]) -> RanksError:
        """Return the error to raise where processes have ended without a word."""
        beats = self.beats(gone)
        told = "; ".join(f"rank {rank} {_doing(beats.get(rank))}" for rank in gone)
        self.fail(f"{told}: it was killed, or memory ran out; go on with --resume")
        return self.ended(gone)

    def ended(self, others: list[int]) -> RanksError:
        """Return the error of the failure that all know; one process that is not one of these tells people."""
        speaks = self.is_first or (0 in others and self._is_foremost("speaker"))
        return RanksError(self.failure() or "another process has ended", is_told=not speaks)

    def late(self, missing: list[int], what: str, timeout_s: float) -> str:
        """Return the message for processes that others waited for in vain, with what they were doing."""
        beats = self.beats(missing)
        told = "; ".join(f"rank {rank} {_doing(beats.get(rank))}{_living(beats.get(rank))}" for rank in missing)
        told = told or "all are there now"
        return f"waited {timeout_s:g} s {what}, and not all of the {self.world_size} processes came: {told}"

    def fail(self, message: str) -> None:
        """Tell all processes that this one has failed; the first failure counts."""
        with contextlib.suppress(RuntimeError):
            self._store.compare_set("failure", "", json.dumps([self.rank, message]))

    def failure(self) -> str | None:
        """Return what the process that failed first said; None where none has."""
        if not self._store.check(["failure"]):
            return None
        rank, message = json.loads(self._store.get("failure"))
        return str(message) if rank == 0 else f"rank {rank}: {message}"

    def wait_in_vain(self) -> None:
        """Say that this process has waited too long for others."""
        self._store.set(f"waited/{self.rank}", "1")

    def not_waiting(self) -> list[int]:
        """Return the processes that have not waited in vain, and so may be what the others wait for."""
        return [rank for rank in range(self.world_size) if not self._store.check([f"waited/{rank}"])]

    def tell(self) -> None:
        """Say that the first process knows of the failure, and tells people."""
        self._store.set("told", "1")

    def is_told(self) -> bool:
        return bool(self._store.check(["told"]))

    def beats(self, of: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the latest sign of life of processes that gave one: what they did, where, and when by their clocks.

        It takes one request once all have given one.
        """
        if not self._known.issuperset(of) and self._store.check([_CAME]):
            self._known.update(int(rank) for rank in self._store.get(_CAME).decode().split(",")[:-1])
        ranks = [rank for rank in of if rank in self._known]
        found = self._store.multi_get([f"beat/{rank}" for rank in ranks]) if ranks else []
        return {rank: json.loads(beat) for rank, beat in zip(ranks, found, strict=True)}

    def beat(self) -> None:
        """Give a sign of life."""
        beat = {"at": time.time(), "now": self._now, **this_process()}
        self._store.set(f"beat/{self.rank}", json.dumps(beat))
        if not self._has_come:
            self._has_come = True
            self._store.append(_CAME, f"{self.rank},")


class Pulse:
    """Tell which processes give no sign of life, by the clock of this one.

    Attributes:
        beats: The latest sign of each.
    """

    def __init__(self, ranks: Ranks, watched: Sequence[int] | None = None) -> None:
        """Prepare to watch some of the processes; None for all."""
        self._ranks = ranks
        self._watched = range(ranks.world_size) if watched is None else watched
        self.beats: dict[int, dict[str, Any]] = {}
        self._seen: dict[int, float] = {}  # when the latest sign was seen
        self._looked = 0.0

    def silent(self, seconds: float) -> list[int]:
        """Return the processes of which nothing was seen for so long. The first call sees all; look again and again."""
        now = time.monotonic()
        if now - self._looked > BEAT_S:
            self._looked = now
            for rank, beat in self._ranks.beats(self._watched).items():
                if rank not in self.beats or self.beats[rank]["at"] != beat["at"]:
                    self.beats[rank], self._seen[rank] = beat, now
        return [rank for rank, seen in self._seen.items() if now - seen > seconds]

    def gone(self, silent: Sequence[int]) -> list[int]:
        """Return those of silent processes that are not known to live.

        A process gives signs of life in a thread of Python, so that one whose code holds the interpreter's lock gives
        none. On this machine, the system knows better.
        """
        return [rank for rank in silent if not lives(self.beats[rank])]


def _doing(beat: dict[str, Any] | None) -> str:
    if beat is None:
        return "never answered"
    silent = time.time() - beat["at"]
    gone = f" {silent:.0f} s ago" if silent > SILENT_S else ""
    return f"on {beat['host']} was last heard of {beat['now']}{gone}"


def _living(beat: dict[str, Any] | None) -> str:
    """Return what is added of a process that has been silent, and lives."""
    if beat is None or time.time() - beat["at"] < 3 * BEAT_S or not lives(beat):
        return ""
    return ", and its process lives"
