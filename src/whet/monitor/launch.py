"""Start a command, watch it and all it starts from outside, and hand its exit code on.

Python processes among them find `inject/` on their path and report their steps (see `attach`). The command keeps
standard input, output and error, and gets the signals meant for it.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
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
        self._signals = _SignalsToChild()  # before there is a child: one that we leave behind would go on unwatched
        try:
            self._child = subprocess.Popen(words, env=environment(self._receiver.path))
            self._signals.forward_to(self._child)
        except OSError as error:
            self._signals.restore()
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
        try:
            self._sampler.start()
            if self._server is not None:
                self._server.start()
            code = self._child.wait()
            self._receiver.finish()
            self._sampler.stop()
        finally:
            self._signals.restore()
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


def in_foreground() -> bool:
    """Whether a Ctrl-C comes from the terminal, which gives it to every process of the foreground group."""
    with contextlib.suppress(OSError):  # there is no terminal
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def signal_name(number: int) -> str:
    known = number in list(signal.Signals)
    return signal.Signals(number).name if known else f"signal {number}"


class _SignalsToChild:
    """What this process is asked is the child's to do, in its own time; we end when it has.

    A Ctrl-C at a terminal reaches the child without us, and must not reach it twice. What comes before there is a
    child is handed to it as it begins.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before = {number: signal.signal(number, self._forward) for number in _SIGNALS}

    def forward_to(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        while self._early:
            self._send(child, self._early.pop(0))

    def restore(self) -> None:
        """Let signals mean again what they meant before."""
        for number, former in self._before.items():
            signal.signal(number, former)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        elif number != signal.SIGINT or not in_foreground():
            self._send(self._child, number)

    @staticmethod
    def _send(child: "subprocess.Popen[bytes]", number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
