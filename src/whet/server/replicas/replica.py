"""Start, watch and end one replica: a child process, pinned to its cores, that serves on a Unix socket."""

import asyncio
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from whet.errors import TargetError
from whet.measure.isolate import Failure, FailureKind
from whet.server.isolated_process import command_of
from whet.server.replicas.beats import BEAT_S, SILENT_S
from whet.server.replicas.upstream import Upstream

WORKER = "whet.server.replicas.worker"
_LONGEST_LINE = 2**20  # bytes
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MANY = 2**16
_numbers = itertools.count()  # for names of sockets


class Replica:
    """Run one replica. Use it on the event loop only, in the main thread: the process ends with the thread.

    Attributes:
        models: What it serves, as the worker says it, once it has started.
        upstream: The connection to it, once it has started.
    """

    def __init__(
        self,
        number: int,
        directory: Path,
        cores: Sequence[int],
        asked: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.number, self.cores = number, tuple(cores)
        self.models: list[dict[str, Any]] = []
        self._path = directory / f"{next(_numbers)}.socket"
        self._asked, self._say = asked, say
        self._last: deque[str] = deque(maxlen=1)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def upstream(self) -> Upstream:
        assert self._upstream is not None, "the replica has not started"
        return self._upstream

    @property
    def memory(self) -> int:
        """Return the bytes that the process has for itself, without shared weights; 0 where it has ended."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_full_info().uss)
        return 0

    async def start(self) -> None:
        """Start the process, and wait until it takes requests.

        Raises:
            WhetError: What is wrong, as the process says it.
        """
        words, variables = command_of(WORKER)
        for name in _THREADS:
            variables[name] = str(min(len(self.cores), _number(variables.get(name))))
        self._process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent alone, which ends this process
        )
        self._reading = asyncio.ensure_future(self._read_errors())
        try:
            said = await self._told()
        except BaseException:
            await self.end(0)
            raise
        self.models = said["models"]
        self._upstream = Upstream(self.number, str(self._path))
        self._listening = asyncio.ensure_future(self._listen(self._process))

    async def ended(self) -> str:
        """Wait until the process has ended, and return how, in words."""
        assert self._process is not None
        code = await self._process.wait()
        if self._upstream is not None:
            self._upstream.ended.set()
        return f"by signal {-code}" if code < 0 else f"with exit code {code}"

    async def end(self, timeout_s: float) -> None:
        """Ask the process to end, and kill it if it has not after so long."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            if timeout_s:
                self._process.terminate()
            else:
                self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s or None)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self.close()

    async def close(self) -> None:
        """Forget a process that has ended."""
        if self._upstream is not None:
            self._upstream.ended.set()
            await self._upstream.close()
        for task in (self._reading, self._listening):
            if task is not None:
                await asyncio.wait([task], timeout=1.0)
                task.cancel()
        self._path.unlink(missing_ok=True)

    async def _told(self) -> dict[str, Any]:
        """Give the process its order, and return what it says.

        Raises:
            WhetError: What is wrong, as the process says it.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"path": str(self._path), "cores": self.cores, "parent": os.getpid(), "asked": dict(self._asked)}
        with suppress(ConnectionError):  # it ended at once; what it said last follows
            self._process.stdin.write(json.dumps(order).encode())
            await self._process.stdin.drain()
            self._process.stdin.close()
        line = await self._process.stdout.readline()
        if not line:
            how = await self.ended()
            await asyncio.wait([self._reading] if self._reading is not None else [], timeout=1.0)
            last = f": {self._last[0]}" if self._last else ""
            raise TargetError(f"replica {self.number} ended {how} before it was ready{last}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Failure(FailureKind.USER, said["message"], said["error"]).as_error()
        return said

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Read what the process writes while it answers, and kill it where it is silent for too long."""
        assert process.stdout is not None
        silent_s = 0.0  # in steps, so that a pause of this process is not taken for one of the other
        while silent_s <= SILENT_S + BEAT_S:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), BEAT_S)
            except TimeoutError:
                silent_s += BEAT_S
                continue
            if not line:
                return
            silent_s = 0.0
            if line.strip():
                self._say(f"replica {self.number}: {json.loads(line)['message']}")
        self._say(f"replica {self.number} (process {process.pid}) hangs: it has not answered for {silent_s:g} s")
        with suppress(ProcessLookupError):
            process.kill()

    async def _read_errors(self) -> None:
        """Hand on what the process writes to standard error, line by line."""
        assert self._process is not None
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # the line is too long; its beginning is lost
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if text:
                self._last.append(text)
                self._say(f"replica {self.number}: {text}")


def _number(text: str | None) -> int:
    """Return a variable's number of threads; a large one where it states none."""
    return int(text) if text is not None and text.isdecimal() and int(text) else _MANY
