"""Count the steps of a process that `whet monitor` watches, and report them to it twice a second.

This runs in the watched process: `inject/sitecustomize.py` calls `begin` once torch is loaded. Nothing here may disturb
the program.
"""

import atexit
import contextlib
import json
import os
import platform
import socket
import threading

import psutil
import torch

from whet.scripts.monitor.allocator import AllocatorCollector
from whet.scripts.monitor.messages import INTERVAL_S
from whet.scripts.monitor.steps import Step, StepCounter, StepTotals
from whet.scripts.monitor.torch_loop import HOST_PHASES, TorchLoop

_SEND_S = 2.0


class Reporter:
    """Send this process's steps to the socket at `path` from a thread that starts with the first step.

    A forked child inherits the counter, but not the thread. It starts its own with its first step, if it makes any.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._allocator = AllocatorCollector()
        self._begin_process()
        os.register_at_fork(after_in_child=self._begin_process)
        self._loop = TorchLoop(self._add)

    def close(self) -> None:
        """Send the remaining steps, and stop."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=_SEND_S)
        self._loop.stop()
        self._send(self._counter.take())
        with contextlib.suppress(OSError):
            self._socket.close()

    def _begin_process(self) -> None:
        self._counter = StepCounter()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._is_connected = False
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def _add(self, step: Step, num_samples: int | None, num_tokens: int | None) -> None:
        self._counter.add_step(step, num_samples, num_tokens)
        if self._thread is None:
            self._thread = threading.Thread(target=self._report, name="whet-monitor", daemon=True)
            self._thread.start()

    def _report(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._send(self._counter.take())

    def _send(self, steps: StepTotals) -> None:
        message: dict[str, object] = {"format": 1, "pid": os.getpid(), "rank": rank(), "steps": steps.to_json()}
        message |= {"host": platform.node(), "rss_bytes": psutil.Process().memory_info().rss}
        # OSError: `whet monitor` has ended. RuntimeError: CUDA has failed. Neither may disturb the program.
        with contextlib.suppress(OSError, RuntimeError):
            cells = {key: cell.mean for key, cell in self._allocator.collect().items()}
            if cells:
                message |= {"cells": cells, "notes": {"phases": HOST_PHASES}}
            if not self._is_connected:
                self._socket.settimeout(_SEND_S)
                self._socket.connect(self._path)
                self._is_connected = True
            self._socket.sendall(json.dumps(message).encode() + b"\n")


def begin(path: str) -> None:
    """Watch the steps of this process and report them to the socket at `path`."""
    reporter = Reporter(path)
    atexit.register(reporter.close)


def rank() -> int:
    """Return this process's rank among those that train together, by torch.distributed or torchrun; 0 if alone."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
