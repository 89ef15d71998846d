"""Start a command, watch it and all it starts from outside, and hand its exit code on.

Python processes among them find `inject/` on their path and report their steps (see `attach`). The command keeps
standard input, output and error, and gets the signals meant for it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from whet.errors import TargetError
from whet.monitor.gpu import GpuCollector
from whet.monitor.messages import SOCKET_VARIABLE
from whet.monitor.monitor import facts
from whet.monitor.process import ProcessCollector
from whet.monitor.receiver import Receiver
from whet.monitor.run import Run
from whet.monitor.sampler import Sampler
from whet.monitor.server import PageServer

INJECT = Path(__file__).parent / "inject"

_GRACE_S = 10.0  # between asking a process to end and ending it
_POLL_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Launch:
    """One watched command. Raises TargetError where it cannot be started, OptionError for a port in use."""

    def __init__(
        self, command: Sequence[str], *, name: str | None, interval_s: float, address: tuple[str, int] | None
    ) -> None:
        words = list(command)
        self.run = Run(facts(name or name_of(words), words, 0, interval_s))
        self._server = PageServer(self.run, *address) if address else None
        self._receiver = Receiver(self.run)
        try:
            self._child = subprocess.Popen(words, env=environment(self._receiver.path))
        except OSError as error:
            self._receiver.finish(timeout_s=0)
            self.close()
            raise TargetError(f"cannot run {words[0]}: {error.strerror or error}") from error
        self.run.facts = facts(self.run.facts.name, words, self._child.pid, interval_s)
        self._gpu = GpuCollector()
        self.run.name_gpus(self._gpu.names)
        collectors = (ProcessCollector(self._child.pid), self._gpu, self._receiver)
        self._sampler = Sampler(self.run, collectors, self._receiver.take_steps)

    @property
    def url(self) -> str | None:
        """The live page's address; None without one."""
        return self._server.url if self._server else None

    def wait(self) -> int:
        """Watch until the command ends. Returns its exit code; 128 and the signal's number where a signal ended it."""
        self._sampler.start()
        if self._server is not None:
            self._server.start()
        code = wait_for(self._child)
        self._receiver.finish()
        self._sampler.stop()
        self._gpu.close()
        if code >= 0:
            self.run.end(exit_code=code)
        else:
            code, name = 128 - code, signal_name(-code)
            self.run.end(exit_code=code, message=f"ended by {name}")
        return code

    def serve_until_interrupted(self) -> None:
        """Keep the page up after the end."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)

    def close(self) -> None:
        """Stop the page, once it has heard of the end."""
        if self._server is not None:
            self._server.stop()


def environment(socket_path: Path) -> dict[str, str]:
    """The command's environment: as this process's, with the way to the watching on PYTHONPATH."""
    given = os.environ.get("PYTHONPATH")
    path = f"{INJECT}{os.pathsep}{given}" if given else str(INJECT)
    return {**os.environ, "PYTHONPATH": path, SOCKET_VARIABLE: str(socket_path)}


def name_of(words: Sequence[str]) -> str:
    """What a command is called: the script or module that a Python runs, else the program."""
    program = Path(words[0]).name
    if program.startswith("python") or program == "torchrun":
        rest = list(words[1:])
        for i, word in enumerate(rest):
            if word == "-m" and i + 1 < len(rest):
                return rest[i + 1]
            if word.endswith(".py"):
                return Path(word).name
    return program


def wait_for(child: "subprocess.Popen[bytes]") -> int:
    """Wait for a child, handing on the signals that this process gets. Returns its code as `subprocess` gives it.

    A Ctrl-C at a terminal reaches the child without us; asked a second time, or after ten seconds, it is told to end.
    """
    asked: list[float] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            if number != signal.SIGINT or not in_foreground():
                child.send_signal(number)
            elif len(asked) > 1:
                child.terminate()

    with _handling(hand_on):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_POLL_S)
            if asked and time.monotonic() > asked[0] + _GRACE_S:
                child.terminate()
            if asked and time.monotonic() > asked[0] + 2 * _GRACE_S:
                child.kill()


def in_foreground() -> bool:
    """Whether a Ctrl-C comes from a terminal, which gives it to every process of the group."""
    for stream in (sys.stdin, sys.stderr, sys.stdout):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return False


def signal_name(number: int) -> str:
    known = number in list(signal.Signals)
    return signal.Signals(number).name if known else f"signal {number}"


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
