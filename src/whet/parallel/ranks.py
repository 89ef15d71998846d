"""Let the processes of a training agree on values, and know which of them live and what they do.

What processes tell each other here goes through torchrun's store as JSON: nothing is unpickled, no collective is
needed, and a thread may do it while the training's collectives go on.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.errors import RanksError, WhetError

BEAT_S = 1.0  # between two signs of life
SILENT_S = 5.0  # after which a process that broke off a collective counts as gone
POLL_S = 1e-4, 1e-2  # between two looks for an answer, at first and at most
_GONE_S = 12.0  # after which a process that gives no sign of life counts as gone where others wait for its word


@dataclass
class Ranks:
    """Stand for the processes that train together; one process alone is a special case.

    Attributes:
        rank: This process, counted from 0.
        local_rank: This process among those of its machine.
        timeout_s: The seconds after which a process that does not answer ends the run.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    timeout_s: float = 600.0
    _store: Any = None
    _counts: dict[str, int] = field(default_factory=dict)
    _now: str = "at its start"
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
        self._store.set(f"{name}/{number}/{self.rank}", json.dumps(value))
        keys = [f"{name}/{number}/{rank}" for rank in range(self.world_size)]
        self._wait(keys, f"for {name}", timeout_s or self.timeout_s)
        found = [json.loads(self._store.get(key)) for key in keys]
        if number > 2:  # everybody has answered the call before, and so has read the one before that
            self._store.delete_key(f"{name}/{number - 2}/{self.rank}")
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

    def _wait(self, keys: list[str], what: str, timeout_s: float) -> None:
        began, pause = time.monotonic(), POLL_S[0]
        pulse, look_at = Pulse(self), began + BEAT_S
        while not self._store.check(keys):
            if (failure := self.failure()) is not None:
                raise RanksError(failure, is_told=self.rank > 0)
            now = time.monotonic()
            if now > look_at:  # a look asks for each process by itself
                look_at = now + BEAT_S
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                if gone := [rank for rank in pulse.silent(_GONE_S) if rank in missing]:
                    raise self.without(gone)
                if missing and now - began > timeout_s:
                    self.fail(self.late(missing, what, timeout_s))
                    raise self.ended(missing)
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_S[1])

    def without(self, gone: list[int]) -> RanksError:
        """Return the error to raise where processes have ended without a word."""
        beats = self.beats()
        told = "; ".join(f"rank {rank} {_doing(beats.get(rank))}" for rank in gone)
        self.fail(f"{told}: it was killed, or memory ran out; go on with --resume")
        return self.ended(gone)

    def ended(self, others: list[int]) -> RanksError:
        """Return the error of the failure that all know; the first process tells people, if it is not one of these."""
        first = next((rank for rank in range(self.world_size) if rank not in others), self.rank)
        return RanksError(self.failure() or "another process has ended", is_told=self.rank != first)

    def late(self, missing: list[int], what: str, timeout_s: float) -> str:
        """Return the message for processes that others waited for in vain, with what they were doing."""
        beats = self.beats()
        told = "; ".join(f"rank {rank} {_doing(beats.get(rank))}" for rank in missing) or "all are there now"
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

    def beats(self) -> dict[int, dict[str, Any]]:
        """Return the latest sign of life of each process: what it did, on which machine, and when by its clock."""
        found = {}
        for rank in range(self.world_size):
            if self._store.check([f"beat/{rank}"]):
                found[rank] = json.loads(self._store.get(f"beat/{rank}"))
        return found

    def beat(self) -> None:
        """Give a sign of life."""
        beat = {"at": time.time(), "now": self._now, "host": socket.gethostname()}
        self._store.set(f"beat/{self.rank}", json.dumps(beat))


class Pulse:
    """Tell which processes give no sign of life, by the clock of this one."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        # What its clock said in the latest sign of each process, and when that was seen by this one's.
        self._seen: dict[int, tuple[float, float]] = {}
        self._looked = 0.0

    def silent(self, seconds: float) -> list[int]:
        """Return the processes of which nothing was seen for so long. The first call sees all; look again and again."""
        now = time.monotonic()
        if now - self._looked > BEAT_S:
            self._looked = now
            for rank, beat in self._ranks.beats().items():
                if self._seen.get(rank, (0.0, 0.0))[0] != beat["at"]:
                    self._seen[rank] = beat["at"], now
        return [rank for rank, (_, seen) in self._seen.items() if now - seen > seconds]


def _doing(beat: dict[str, Any] | None) -> str:
    if beat is None:
        return "never answered"
    silent = time.time() - beat["at"]
    gone = f" {silent:.0f} s ago" if silent > SILENT_S else ""
    return f"on {beat['host']} was last heard of {beat['now']}{gone}"
