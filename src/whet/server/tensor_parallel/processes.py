"""Start the other processes that compute a model together, tell when one of them ends, and end them."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from whet.errors import TargetError
from whet.measure.isolate import signal_name
from whet.server.isolated_process import command_of, packed, received
from whet.server.tensor_parallel.shares import Given

_MODULE = "whet.server.tensor_parallel.worker"
_LEAVE_S = 5.0  # how long a process may take to end by itself


class Processes:
    """Hold the processes of the ranks from 1 on. They live until `end`, or until this process ends in any way."""

    def __init__(self, given: Sequence[Given]) -> None:
        self._parent = os.getpid()
        self._is_ending = False
        self._ended: dict[int, str] = {}  # how processes ended that nobody asked to, by rank
        self._changed = threading.Condition()
        self._all: dict[int, subprocess.Popen[bytes]] = {}
        words, variables = command_of(_MODULE)
        for one in given:
            self._all[one.share.rank] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, pass_fds=(one.memory,)
            )
        for one in given:
            self._tell(one.share.rank, one.as_message())

    def tell_all(self, message: Mapping[str, object]) -> None:
        for rank in self._all:
            self._tell(rank, message)

    def answers(self) -> list[dict[str, Any]]:
        """Return the next answer of each.

        Raises:
            TargetError: One of them failed, or has ended.
        """
        return [self._answer(rank) for rank in self._all]

    def watch(self, on_end: Callable[[int], None]) -> None:
        """Call `on_end` with the rank of each process that ends before `end`, from a thread."""
        for rank in self._all:
            threading.Thread(target=self._watch, args=(rank, on_end), name="whet-rank", daemon=True).start()

    def how_ended(self, rank: int, wait_s: float = 0.0) -> str | None:
        """Return how a process ended, as "has ended by SIGKILL"; None where it lives after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._ended, wait_s)
            return self._ended.get(rank)

    def pid(self, rank: int) -> int:
        return self._all[rank].pid

    def end(self) -> None:
        """End all, and wait for them."""
        if os.getpid() != self._parent:  # after a fork, they belong to the other process
            return
        self._is_ending = True
        for process in self._all.values():
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._all.values():
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _tell(self, rank: int, message: Mapping[str, object]) -> None:
        stream = self._all[rank].stdin
        assert stream is not None
        with suppress(OSError):  # it has ended, which reading its answer tells
            stream.write(packed(message))
            stream.flush()

    def _answer(self, rank: int) -> dict[str, Any]:
        process = self._all[rank]
        assert process.stdout is not None
        found = received(process.stdout)
        if found is None:
            raise TargetError(f"rank {rank} of the model {_ended(process.wait())} while it loaded its share")
        if (error := found[0].get("error")) is not None:
            raise TargetError(f"rank {rank} of the model: {error}")
        return found[0]

    def _watch(self, rank: int, on_end: Callable[[int], None]) -> None:
        code = self._all[rank].wait()
        if self._is_ending:
            return
        with self._changed:
            self._ended[rank] = _ended(code)
            self._changed.notify_all()
        on_end(rank)


def _ended(code: int) -> str:
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
