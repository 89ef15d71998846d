"""Join the processes that torchrun started, let them agree on values, and let the failure of one end all.

What processes tell each other here goes through torchrun's store as JSON: nothing is unpickled, no collective is
needed, and a thread may do it while the training's collectives go on.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from whet import __version__
from whet.errors import OptionError, RanksError, WhetError, named_reason, reason
from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_POLL_S = 1e-4, 1e-2  # between two looks for an answer, at first and at most
_BEAT_S = 1.0  # between two signs of life
_SILENT_S = 5.0  # after which a process that broke off a collective counts as gone
_TELLS_S = 5.0  # in which the first process must have seen the failure of another one
_GRACE_S = 15.0  # in which a process may end by itself once another one has failed
_JOIN_S = 300.0
_FAILED = 2  # the exit code of a process that cannot end by itself


def started_together() -> bool:
    """Return whether this process is one of several: of torchrun's or something like it, or of whet's own."""
    by_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1 and all(name in os.environ for name in _VARIABLES)
    return by_torchrun or int(os.environ.get(WORLD_SIZE, "1")) > 1


def speaks() -> bool:
    """Return whether this process tells people what comes of all."""
    return not started_together() or _place()[0] == 0


def neighbours() -> int:
    """Return how many of the processes share this one's machine, itself included."""
    by_torchrun = os.environ.get("LOCAL_WORLD_SIZE")
    return int(by_torchrun) if by_torchrun is not None else int(os.environ.get(WORLD_SIZE, "1"))


def restart_count() -> int:
    """Return how many times torchrun has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


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
        error: WhetError | None = None
        found = None
        try:
            found = action()
        except WhetError as failed:
            error = failed
        faults = self.gather(name, None if error is None else str(error), timeout_s)
        rank, fault = next(((rank, fault) for rank, fault in enumerate(faults) if fault is not None), (0, None))
        if fault is None:
            return found
        if error is not None and self.is_first:
            raise error
        raise RanksError(fault if rank == 0 else f"rank {rank}: {fault}", is_told=not self.is_first) from error

    def first_does(self, name: str, action: Callable[[], Any]) -> Any:
        """Do something on the first process, and return its result there; where it fails, all raise."""
        return self.all_succeed(name, action if self.is_first else lambda: None)

    def _wait(self, keys: list[str], what: str, timeout_s: float) -> None:
        began, pause = time.monotonic(), _POLL_S[0]
        while not self._store.check(keys):
            if (failure := self.failure()) is not None:
                raise RanksError(failure, is_told=self.rank > 0)
            if time.monotonic() - began > timeout_s:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise RanksError(self.late(missing, what, timeout_s), is_told=self.rank > 0)
            time.sleep(pause)
            pause = min(1.5 * pause, _POLL_S[1])

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


def _doing(beat: dict[str, Any] | None) -> str:
    if beat is None:
        return "never answered"
    silent = time.time() - beat["at"]
    gone = f" {silent:.0f} s ago" if silent > _SILENT_S else ""
    return f"on {beat['host']} was last heard of {beat['now']}{gone}"


@contextlib.contextmanager
def joined(device: str = "cpu", timeout_s: float = 600.0) -> Iterator[Ranks]:
    """Join the processes that torchrun started for the block; one process alone needs nothing.

    Where the block fails on one process, all end within 30 seconds, and the first process that lives says why.

    Args:
        device: The kind of device that is trained on, "cpu" or "cuda".

    Raises:
        OptionError: The processes cannot meet.
        RanksError: They run different versions, or another one failed.
    """
    if not started_together():
        yield Ranks(timeout_s=timeout_s)
        return
    ranks = _met(device, timeout_s)
    with _ending_soon(), _watched(ranks), failing_together(ranks):
        yield ranks
        ranks.gather("the end", None)  # where the first process holds the store, it leaves last
    distributed.destroy_process_group()


@contextlib.contextmanager
def failing_together(ranks: Ranks) -> Iterator[None]:
    """Tell all processes at once where the block fails on this one, or where it notices that another has failed.

    Use it inside of whatever waits for the others as it is closed.

    Raises:
        RanksError: Another process failed.
    """
    if ranks.is_alone:
        yield
        return
    try:
        yield
    except RanksError:
        raise
    except WhetError as error:
        raise _passed_on(ranks, error) from error
    except RuntimeError as error:
        raise _broken(ranks, error) from error
    except BaseException as error:
        ranks.fail(f"it was ended by {named_reason(error)}")
        raise


def _passed_on(ranks: Ranks, error: WhetError) -> WhetError:
    """Tell all processes of a failure, and return the error to raise here."""
    ranks.fail(str(error))
    if ranks.is_first:
        ranks.tell()
    began = time.monotonic()
    while not ranks.is_first and time.monotonic() - began < _TELLS_S:
        if ranks.is_told():
            return RanksError(str(error), is_told=True)
        time.sleep(_POLL_S[1])
    return error


def _broken(ranks: Ranks, error: RuntimeError) -> Exception:
    """Return the error to raise where a collective broke off: what another process said, or which ones are silent."""
    is_late = any(word in str(error).lower() for word in ("timed out", "timeout"))
    if is_late:
        ranks.wait_in_vain()
    first = ranks.beats()
    began = time.monotonic()
    while time.monotonic() - began < _SILENT_S:
        if (failure := ranks.failure()) is not None:
            return RanksError(failure, is_told=not ranks.is_first)
        time.sleep(0.1)
    last = ranks.beats()
    silent = [r for r in range(ranks.world_size) if r not in last or last[r]["at"] == first.get(r, {}).get("at")]
    if silent:
        told = "; ".join(f"rank {rank} {_doing(last.get(rank))}" for rank in silent)
        ranks.fail(f"{told}: it was killed, or memory ran out; go on with --resume")
    elif is_late:
        ranks.fail(ranks.late(ranks.not_waiting(), "for others", ranks.timeout_s))
    else:
        ranks.fail(f"it was ended by {named_reason(error)}")
        return error
    return RanksError(ranks.failure() or str(error), is_told=not ranks.is_first and 0 not in silent)


@contextlib.contextmanager
def _watched(ranks: Ranks) -> Iterator[None]:
    """Give signs of life for the block, and end this process where another has failed and this one does not notice."""
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(ranks, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()
        watch.join()


def _watch(ranks: Ranks, ended: threading.Event) -> None:
    failed_at: float | None = None
    while not ended.wait(_BEAT_S):
        try:
            ranks.beat()
            failure = ranks.failure()
            if failure is not None and failed_at is None:
                failed_at = time.monotonic()
                if ranks.is_first:
                    ranks.tell()
        except RuntimeError:  # the store is gone with the process that held it
            failure = "the process that held the others' meeting point has ended; go on with --resume"
            failed_at = failed_at or time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > _GRACE_S and not ended.is_set():
            if ranks.is_first:
                sys.stderr.write(f"error: {failure}\n")
                sys.stderr.flush()
            os._exit(_FAILED)


@contextlib.contextmanager
def _ending_soon() -> Iterator[None]:
    """Have SIGTERM, which torchrun sends where a process has failed, leave this one time to say what it knows."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(_GRACE_S, os._exit, [128 + number])
        timer.daemon = True
        timer.start()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _place() -> tuple[int, int, int, str]:
    """Return the rank, the world size, the rank on this machine, and where the processes meet, as init methods say."""
    if RENDEZVOUS in os.environ:
        rank = int(os.environ[RANK])
        return rank, int(os.environ[WORLD_SIZE]), rank, os.environ[RENDEZVOUS]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return rank, size, int(os.environ.get("LOCAL_RANK", "0")), "env://"


def _met(device: str, timeout_s: float) -> Ranks:
    rank, size, local_rank, method = _place()
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}" if method == "env://" else method
    limit = timedelta(seconds=min(timeout_s, _JOIN_S))
    try:
        # Two connections: torch's groups may wait in one of them, and signs of life go on in the other.
        stores = [next(rendezvous(method, rank, size, timeout=limit))[0] for _ in range(2)]
    except (RuntimeError, ValueError) as error:
        raise OptionError(
            f"the {size} processes cannot meet at {place}: {reason(error)}; choose a free port with torchrun "
            "--master-port, and start as many processes as it was told"
        ) from error
    # torchrun restarts processes with the same store, which still holds the keys of those before.
    prefix = f"whet/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{restart_count()}"
    torch_store, own = (
        PrefixStore(f"{prefix}/{name}", store) for name, store in zip(("torch", "own"), stores, strict=True)
    )
    ranks = Ranks(rank, size, local_rank, timeout_s, own)
    ranks.beat()
    told = ranks.gather("the start", [__version__, torch.__version__, device], min(timeout_s, _JOIN_S))
    if any(one != told[0] for one in told):
        other = next(number for number, one in enumerate(told) if one != told[0])
        names = ("whet", "torch", "device")
        different = next(i for i in range(len(names)) if told[other][i] != told[0][i])
        raise RanksError(
            f"rank 0 has {names[different]} {told[0][different]}, and rank {other} {told[other][different]}; install "
            "the same versions on all machines, and give all the same configuration",
            is_told=rank > 0,
        )
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(
        backend, store=torch_store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    return ranks
