"""Receive the messages of the watched processes over a local socket, as a collector and the source of steps."""

import contextlib
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from whet.scripts.monitor.allocator import ALLOCATOR
from whet.scripts.monitor.messages import MAX_LINE_BYTES, Message
from whet.scripts.monitor.ranks import RankSums
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.series import Cell
from whet.scripts.monitor.steps import StepTotals

_NO_STEPS_YET = "no step was seen yet"  # imports and the first compilation take their time
_NO_STEPS = "no step was seen: the command ran no Python that can import whet, or did not train with torch"
_NO_CUDA = "no watched process has used CUDA"


@dataclass
class _Source:
    """Hold what one process has reported."""

    rank: int
    order: int
    steps: StepTotals = field(default_factory=StepTotals)  # since they were taken
    all_steps: StepTotals = field(default_factory=StepTotals)
    cells: dict[str, Cell] = field(default_factory=dict)
    has_stepped: bool = False
    is_open: bool = True


class Receiver:
    """Receive the steps of every process that reports, and take those of the lowest rank for the run.

    Processes that train together make their steps together, each on its own samples. So steps, times and phases are
    those of the first process, while samples and tokens are added up over all. `run` gets the notes of the processes.
    """

    def __init__(self, run: Run) -> None:
        self.unavailable: dict[str, str] = {"steps": _NO_STEPS_YET, ALLOCATOR: _NO_CUDA}
        self._run = run
        self._directory = _private_directory()
        self.path = Path(self._directory.name) / "socket"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.path))
        self._listening.listen(64)
        self._listening.setblocking(False)
        self._sources: dict[int, _Source] = {}
        self._lock = threading.Lock()
        self._num_open = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="whet-monitor-receiver", daemon=True)
        self._thread.start()

    def collect(self) -> dict[str, Cell]:
        """Return what the processes' CUDA allocators hold. If several use one GPU, the one that holds most counts."""
        cells: dict[str, Cell] = {}
        with self._lock:
            for source in self._sources.values():
                for key, cell in source.cells.items() if source.is_open else ():
                    if key not in cells or cell.mean > cells[key].mean:
                        cells[key] = cell
        return cells

    def take_steps(self) -> StepTotals:
        with self._lock:
            stepping = [source for source in self._sources.values() if source.has_stepped]
            if not stepping:
                return StepTotals()
            first = min(stepping, key=lambda s: (not (s.is_open or s.steps.num_steps), s.rank, s.order))
            taken, first.steps = first.steps, StepTotals()
            if not taken.num_steps:
                return taken
            for source in stepping:
                if source is not first:
                    steps, source.steps = source.steps, StepTotals()
                    if source.rank == first.rank and not (source.is_open and first.is_open):
                        taken.merge(steps)  # one process ran after the other
                    else:
                        taken.merge(StepTotals(num_samples=steps.num_samples, num_tokens=steps.num_tokens))
        return taken

    def finish(self, timeout_s: float = 2.0) -> None:
        """Receive what ended processes sent before, then stop; wait at most `timeout_s` for open connections."""
        deadline = time.monotonic() + timeout_s
        time.sleep(0.02)  # a connection that was made just before the end must still be accepted
        while self._num_open and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopped.set()
        self._thread.join()
        if self.unavailable.get("steps") == _NO_STEPS_YET:
            self.unavailable["steps"] = _NO_STEPS
        self._listening.close()
        self._directory.cleanup()

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ, None)
            while not self._stopped.is_set():
                for key, _ in selector.select(timeout=0.1):
                    if key.data is None:
                        self._accept(selector)
                    elif not key.data.read():
                        selector.unregister(key.fileobj)
                        key.data.close()
                        self._num_open -= 1
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    key.data.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            selector.register(connection, selectors.EVENT_READ, _Connection(connection, self._handle, self._disconnect))
            self._num_open += 1

    def _handle(self, line: bytes) -> int | None:
        """Handle one message. Return the sender's process id, or None if the message is invalid."""
        try:
            message = Message.model_validate_json(line)
            steps = message.steps.totals() if message.steps else StepTotals()
        except (ValidationError, ValueError):
            self._run.note("message", "a watched process sent an invalid message, which was ignored")
            return None
        with self._lock:
            source = self._sources.setdefault(message.pid, _Source(message.rank, len(self._sources)))
            source.rank = message.rank
            source.steps.merge(steps)
            source.all_steps.merge(steps)
            sums = RankSums.of(source.all_steps, message.rank, message.host, message.pid, message.rss_bytes)
            source.cells = message.row_cells()
            source.is_open = True
            if message.cells:
                self.unavailable.pop(ALLOCATOR, None)
            if steps.num_steps:
                source.has_stepped = True
                self.unavailable.pop("steps", None)
            elif message.problem and not any(s.has_stepped for s in self._sources.values()):
                self.unavailable["steps"] = message.problem
            together = sum(s.has_stepped and s.is_open for s in self._sources.values())
        if sums.num_steps:
            self._run.ranks.add(sums)
        for key, text in message.notes.items():
            self._run.note(key, text)
        if together > 1:
            self._run.note(
                "ranks", f"{together} processes train: steps and phases are of the first, samples are of all"
            )
        return message.pid

    def _disconnect(self, pid: int) -> None:
        with self._lock:
            if pid in self._sources:
                self._sources[pid].is_open = False


def _private_directory() -> tempfile.TemporaryDirectory[str]:
    """Make a directory for this user only: in /tmp if TMPDIR is long, since a socket's path may have 107 bytes."""
    where = tempfile.gettempdir()
    return tempfile.TemporaryDirectory(prefix="whet-monitor-", dir=where if len(os.fsencode(where)) < 70 else "/tmp")


class _Connection:
    """Read lines from one process."""

    def __init__(
        self, connection: socket.socket, handle: Callable[[bytes], int | None], disconnect: Callable[[int], None]
    ) -> None:
        self._connection = connection
        self._handle = handle
        self._disconnect = disconnect
        self._pid: int | None = None
        self._buffer = b""

    def read(self) -> bool:
        """Read what has arrived. Return False once the other side has gone or sends a line that is too long."""
        try:
            data = self._connection.recv(1 << 16)
        except OSError:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._pid = self._handle(line) or self._pid
        return bool(data) and len(self._buffer) < MAX_LINE_BYTES

    def close(self) -> None:
        """Close the connection, and mark its process as gone."""
        self._connection.close()
        if self._pid is not None:
            self._disconnect(self._pid)
