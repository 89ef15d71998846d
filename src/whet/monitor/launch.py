"""Start a command, watch it and all processes that it starts from outside, and return its exit code.

Python processes among them find `inject/` on their path and report their steps (see `attach`). The command keeps
standard input, output and error, and receives the signals that are sent to this process.
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
    """Start and watch one command.

    Args:
        command: The program and its arguments.
        name: The name of the run; None takes the script's.
        interval_s: Seconds between samples.
        address: The host and port of the live page; None serves none.

    Raises:
        TargetError: The command cannot be started.
        OptionError: The port is in use.
    """

    def __init__(
        self, command: Sequence[str], *, name: str | None, interval_s: float, address: tuple[str, int] | None
    ) -> None:
        words = list(command)
        self.run = Run(facts(name or name_of(words), words, 0, interval_s))
        self._server = PageServer(self.run, *address) if address else None
        self._receiver = Receiver(self.run)
        self._signals = _SignalsToChild()  # first, so that no signal ends this process and leaves the child unwatched
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
        """Return the live page's address, or None without a page."""
        return self._server.url if self._server else None

    def wait(self) -> int:
        """Watch until the command ends.

        Returns:
            The command's exit code; 128 plus the signal's number if a signal ended it.
        """
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
        """Keep the page up after the end, until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)

    def close(self) -> None:
        """Stop the page, once it knows of the end."""
        if self._server is not None:
            self._server.stop()


def environment(socket_path: Path) -> dict[str, str]:
    """Return the command's environment: this process's own, with `inject/` on PYTHONPATH and the path of the socket."""
    given = os.environ.get("PYTHONPATH")
    path = f"{INJECT}{os.pathsep}{given}" if given else str(INJECT)
    return {**os.environ, "PYTHONPATH": path, SOCKET_VARIABLE: str(socket_path)}


def name_of(words: Sequence[str]) -> str:
    """Return the name of a command: the script or module that a Python runs, or the program."""
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
    """Return whether a Ctrl-C comes from the terminal, which sends it to every process of the foreground group."""
    with contextlib.suppress(OSError):  # there is no terminal
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def signal_name(number: int) -> str:
    """Return the name of a signal, as "SIGTERM"."""
    known = number in list(signal.Signals)
    return signal.Signals(number).name if known else f"signal {number}"


class _SignalsToChild:
    """Forward the signals of this process to the child. This process ends when the child has ended.

    A Ctrl-C at a terminal reaches the child directly, and must not reach it twice. Signals that arrive before the child
    starts are sent to it as it starts.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before = {number: signal.signal(number, self._forward) for number in _SIGNALS}

    def forward_to(self, child: "subprocess.Popen[bytes]") -> None:
        """Forward signals to this child from now on, and send it those that came early."""
        self._child = child
        while self._early:
            self._send(child, self._early.pop(0))

    def restore(self) -> None:
        """Restore the former signal handlers."""
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
