"""Read batches in worker processes, in the order of their steps, whatever the number of processes.

Process w of n reads the steps start + w, start + w + n and so on, and sends each batch through a pipe of its own. The
pipes are read in turn, so that batches come in the order of their steps. A process that has sent what its pipe holds
reads one batch more, and then waits.

A pipe breaks when the process at its other end has ended, for whatever reason. So a worker that was killed is noticed,
and the workers of a run that was killed end by themselves. Ctrl-C and SIGTERM may be sent to a whole group of
processes; workers ignore them, since the run decides when it ends.
"""

import atexit
import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch
from torch import Tensor

from whet.errors import TargetError, WhetError, named_reason
from whet.measure.isolate import signal_name

Batch = dict[str, Tensor]
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READERS: "weakref.WeakSet[Connection]" = weakref.WeakSet()  # a forked worker holds copies, and closes them


class WorkerBatches:
    """Iterate without end over the batches of steps, which worker processes read ahead.

    Args:
        read: Returns the batch of a step: tensors on the CPU, by name. It depends on the step alone. Where processes do
            not start by a fork, it must be picklable.
        num_workers: The processes, 1 or more.
    """

    def __init__(self, read: Callable[[int], Batch], num_workers: int, start: int = 0) -> None:
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._processes: list[BaseProcess] = []
        self._readers: list[Connection] = []
        self._turns = itertools.cycle(range(num_workers))
        # Before it ends, Python would wait for workers that wait for it. What is registered last runs first.
        self._end = weakref.finalize(self, _end, self._processes, self._readers, os.getpid())
        atexit.register(self._end)
        try:
            for number in range(num_workers):
                reader, writer = context.Pipe(duplex=False)
                self._readers.append(reader)
                _READERS.add(reader)
                process = context.Process(
                    target=_work, args=(read, writer, start + number, num_workers), name="whet-data", daemon=True
                )
                with _signals_held():
                    process.start()
                self._processes.append(process)
                writer.close()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Return the batch of the next step.

        Raises:
            TargetError: It cannot be read, or its worker has ended.
        """
        if not self._end.alive:
            raise StopIteration
        number = next(self._turns)
        try:
            is_batch, found = pickle.loads(self._readers[number].recv_bytes())
        except (EOFError, OSError) as error:
            raise TargetError(
                f"the worker process that reads batches {self._fate(number)}; give more memory or fewer "
                "data.num_workers"
            ) from error
        if not is_batch:
            raise TargetError(found)
        return {name: torch.from_numpy(numbers) for name, numbers in found.items()}

    def _fate(self, number: int) -> str:
        """Return how a worker ended, as a part of a sentence."""
        process = self._processes[number]
        process.join(1)
        code = process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal_name(-code)}"
        return "has ended" if code is None else f"has ended with exit code {code}"

    def close(self) -> None:
        """End the processes. A second call does nothing."""
        self._end()
        atexit.unregister(self._end)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back in the block, so that a process that starts in it can ignore them before they arrive."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(processes: list[BaseProcess], readers: list[Connection], pid: int) -> None:
    """Kill workers, which only read, and close their pipes. A forked process leaves those of its parent alone."""
    if os.getpid() != pid:
        return
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    for reader in readers:
        reader.close()


def _work(read: Callable[[int], Batch], writer: Connection, first: int, stride: int) -> None:
    """Send the batches of every stride-th step until nobody takes them. This is all that a worker does."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED_SIGNALS)
    for reader in list(_READERS):
        reader.close()
    torch.set_num_threads(1)  # a forked process has none of the threads that operators would wait for
    with contextlib.suppress(OSError):
        for step in itertools.count(first, stride):
            is_batch, content = _content(read, step)
            writer.send_bytes(pickle.dumps((is_batch, content), protocol=pickle.HIGHEST_PROTOCOL))
            if not is_batch:
                return


def _content(read: Callable[[int], Batch], step: int) -> tuple[bool, Any]:
    """Return whether a step has a batch, with its numbers by name, or with why there is none."""
    try:
        return True, {name: tensor.numpy() for name, tensor in read(step).items()}
    except WhetError as error:
        return False, str(error)
    except Exception as error:  # noqa: BLE001 - it is told to the process that asks for the batch
        return False, f"the batch of step {step + 1} cannot be read: {named_reason(error)}"
