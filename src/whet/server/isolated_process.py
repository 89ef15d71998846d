"""Run work that could crash, hang or fill the memory in a child process. This module holds both its ends.

The child runs `python -m MODULE` and answers one message at a time. A message in either direction consists of the
lengths of its two parts, a head of JSON, and content in bytes. Nothing is unpickled. The child limits its own CPU time
for each message and its memory, and ends when its parent does. The next message starts another child.
"""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import LifoQueue
from typing import IO, Any

import psutil

LENGTHS = struct.Struct("!QQ")  # the bytes of the head and of the content
_LONGEST_S = 60.0  # of one answer: a busy machine may need long for little CPU time


class ChildEnded(Exception):
    """Signal that the child ended before it answered. `was_slow` says that it ended because of its time limit."""

    def __init__(self, *, was_slow: bool) -> None:
        super().__init__("the child process took too long" if was_slow else "the child process ended")
        self.was_slow = was_slow


class IsolatedProcess:
    """Asks a child process. It starts with the first message. Any thread may ask; one waits for another.

    The child runs `module`, which calls `answer_messages`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()

    def ask(self, message: Mapping[str, object]) -> dict[str, Any]:
        """Return the child's answer.

        Raises:
            ChildEnded: It crashed, or took too long, or needed too much memory.
        """
        with self._turn:
            process = self._started()
            timer = threading.Timer(_LONGEST_S, process.kill)
            timer.daemon = True
            timer.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(packed(message))
                process.stdin.flush()
                answer = received(process.stdout)
            except (OSError, ValueError):  # the pipe broke, or `end` has closed it in another thread
                answer = None
            finally:
                was_killed = timer.finished.is_set()
                timer.cancel()
            if answer is None:
                self.end()
                raise ChildEnded(was_slow=was_killed or process.wait() == -signal.SIGPROF)
            return answer[0]

    def end(self) -> None:
        """Kill the child, if there is one. Whoever waits for its answer gets ChildEnded."""
        process, self._process = self._process, None
        if process is not None:
            _end(process, self._pid)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._pid != os.getpid():  # after a fork, the child belongs to the other process
            self._process, self._pid = None, os.getpid()
        if self._process is None or self._process.poll() is not None:
            words, variables = command_of(self._module)
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=nothing, env=variables)
            weakref.finalize(self, _end, self._process, self._pid)
        return self._process


class IsolatedProcesses:
    """Asks whichever of several child processes is idle. Any thread may ask; it waits while all are busy."""

    def __init__(self, module: str, number: int) -> None:
        self._all = [IsolatedProcess(module) for _ in range(number)]
        self._idle = LifoQueue[IsolatedProcess]()  # so that no second child starts where one is enough
        for child in self._all:
            self._idle.put(child)

    def ask(self, message: Mapping[str, object]) -> dict[str, Any]:
        """Return a child's answer. Raises as IsolatedProcess does."""
        child = self._idle.get()
        try:
            return child.ask(message)
        finally:
            self._idle.put(child)

    def end(self) -> None:
        """Kill the children. Whoever waits for the answer of one gets ChildEnded."""
        for child in self._all:
            child.end()


def command_of(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of the command that runs a module as a child, and the child's environment."""
    paths = os.pathsep.join(path for path in sys.path if path)
    # -P: modules in the working directory must not replace ours
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": paths}


def _end(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() != parent:  # after a fork, the child belongs to the other process
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what could not be written any more
                pipe.close()


def answer_messages(answer: Callable[[dict[str, Any]], Mapping[str, object]], *, cpu_s: float, more_bytes: int) -> None:
    """Answer messages on standard input until it is closed. Call it in the child.

    The process ends if a message takes more than `cpu_s` of CPU time. It may take `more_bytes` of memory from now on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches this process too; the parent ends it
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write among the answers
    while (message := received(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        written = packed(answer(message[0]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(written)
        sink.flush()


def packed(head: Mapping[str, object], content: bytes = b"") -> bytes:
    written = json.dumps(head).encode()
    return LENGTHS.pack(len(written), len(content)) + written + content


def received(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Return the head and the content of the next message, or None if the other end has closed the pipe."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_size, content_size = LENGTHS.unpack(lengths)
    head, content = stream.read(head_size), stream.read(content_size)
    return (json.loads(head), content) if (len(head), len(content)) == (head_size, content_size) else None
