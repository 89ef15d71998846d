"""Join the processes that torchrun started, and let the failure of one end all."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from whet import __version__
from whet.errors import OptionError, RanksError, WhetError, named_reason, reason
from whet.parallel.ranks import BEAT_S, POLL_S, SILENT_S, Pulse, Ranks
from whet.parallel.started import place, restart_count, started_together

_TELLS_S = 5.0  # in which the first process must have seen the failure of another one
_GRACE_S = 15.0  # in which a process may end by itself once another one has failed
_JOIN_S = 300.0
_FAILED = 2  # the exit code of a process that cannot end by itself
_LOST = "the process that held the others' meeting point has ended; go on with --resume"


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
    try:
        with _ending_soon(), _watched(ranks), failing_together(ranks):
            yield ranks
            ranks.gather("the end", None)
            ranks.leave()
    except BaseException:
        if device == "cpu":  # NCCL would wait for those that are gone
            distributed.destroy_process_group()
        raise
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
        try:
            found = _broken(ranks, error)
        except RuntimeError:  # the store is gone too, and nobody can ask who tells people
            found = RanksError(_LOST, is_told=ranks.rank > 1)
        raise found from error
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
        time.sleep(POLL_S[1])
    return error


def _broken(ranks: Ranks, error: RuntimeError) -> Exception:
    """Return the error to raise where a collective broke off: what another process said, or which ones are silent."""
    is_late = any(word in str(error).lower() for word in ("timed out", "timeout"))
    if is_late:
        ranks.wait_in_vain()
    pulse, began = Pulse(ranks), time.monotonic()
    while not (gone := pulse.gone(pulse.silent(SILENT_S))) and time.monotonic() - began < SILENT_S + BEAT_S:
        if (failure := ranks.failure()) is not None:
            return RanksError(failure, is_told=not ranks.is_first)
        time.sleep(0.1)
    if gone:
        return ranks.without(gone)
    if is_late:
        missing = ranks.not_waiting()
        ranks.fail(ranks.late(missing, "for others", ranks.timeout_s))
        return ranks.ended(missing)
    ranks.fail(f"it was ended by {named_reason(error)}")
    return error


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
    while not ended.wait(BEAT_S):
        try:
            ranks.beat()
            failure = ranks.failure()
            if failure is not None and failed_at is None:
                failed_at = time.monotonic()
                if ranks.is_first:
                    ranks.tell()
        except RuntimeError:  # the store is gone with the process that held it
            failure = _LOST
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


def own_device(kind: str, ranks: Ranks) -> torch.device:
    """Return the device of this process: of GPUs, each process of a machine has one."""
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, ranks.local_rank)


def _stores(method: str, rank: int, size: int, limit_s: float) -> list[Any]:
    """Return two connections to the store: torch's groups may wait in one, and signs of life go on in the other.

    Raises:
        RuntimeError: There is none in time. Torch itself waits for ever where something else listens on the port.
    """
    found: list[Any] = []
    faults: list[Exception] = []
    limit = timedelta(seconds=limit_s)

    def connect() -> None:
        try:
            found.extend(next(rendezvous(method, rank, size, timeout=limit))[0] for _ in range(2))
        except (RuntimeError, ValueError) as error:
            faults.append(error)

    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(limit_s + _TELLS_S)
    if faults:
        raise faults[0]
    if connecting.is_alive():
        raise RuntimeError("what listens there does not answer")
    return found


def _met(device: str, timeout_s: float) -> Ranks:
    rank, size, local_rank, method = place()
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}" if method == "env://" else method
    limit_s = min(timeout_s, _JOIN_S)
    try:
        stores = _stores(method, rank, size, limit_s)
    except (RuntimeError, ValueError) as error:
        raise OptionError(
            f"the {size} processes cannot meet at {address}: {reason(error)}; choose a free port with torchrun "
            "--master-port, and start as many processes as it was told"
        ) from error
    # torchrun restarts processes with the same store, which still holds the keys of those before.
    prefix = f"whet/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{restart_count()}"
    torch_store, own = (
        PrefixStore(f"{prefix}/{name}", store) for name, store in zip(("torch", "own"), stores, strict=True)
    )
    ranks = Ranks(rank, size, local_rank, timeout_s, _store=own)
    ranks.beat()
    told = ranks.gather("the start", [__version__, torch.__version__, device], limit_s)
    if any(one != told[0] for one in told):
        other = next(number for number, one in enumerate(told) if one != told[0])
        names = ("whet", "torch", "device")
        different = next(i for i in range(len(names)) if told[other][i] != told[0][i])
        ranks.leave()
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
