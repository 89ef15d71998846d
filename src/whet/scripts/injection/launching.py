"""Start a command whose Python processes whet sees from inside, and forward signals to it.

The processes find `inject/` on their path; see `inject/sitecustomize.py`.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from whet.scripts.injection.launchers import launcher_length

INJECT = Path(__file__).parent / "inject"
MODULE_OPTIONS = ("-m", "--module")  # before the name of a module, in the place of a script

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return a command's environment: this process's own, with `inject/` on PYTHONPATH and further variables."""
    given = os.environ.get("PYTHONPATH")
    path = f"{INJECT}{os.pathsep}{given}" if given else str(INJECT)
    return {**os.environ, "PYTHONPATH": path, **added}


def script_index(words: Sequence[str]) -> int | None:
    """Return the place of the script, or of the module after -m, in the command of a Python or launcher, or None."""
    for i, word in enumerate(words):
        if i < max(1, launcher_length(words)):
            continue
        if word in MODULE_OPTIONS:
            return i + 1 if i + 1 < len(words) else None
        if word.endswith(".py"):
            return i
    return None


def runs_python(program: str) -> bool:
    """Return whether a program is a Python, by its name."""
    return Path(program).name.startswith("python")


def name_of(words: Sequence[str]) -> str:
    """Return the name of a command: the script or module that a Python runs, or the program."""
    program = Path(words[0]).name
    if runs_python(program) or launcher_length(words):
        place = script_index(words)
        if place is not None:
            return words[place] if words[place - 1] in MODULE_OPTIONS else Path(words[place]).name
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


class SignalsToChild:
    """Forward the signals of this process to the child. This process ends when the child has ended.

    A Ctrl-C at a terminal reaches the child directly, and must not reach it twice. Signals that arrive before the child
    starts are sent to it as it starts.

    Attributes:
        were_received: Whether there was a signal.
    """

    def __init__(self) -> None:
        self.were_received = False
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before = {number: signal.signal(number, self._forward) for number in _SIGNALS}

    def forward_to(self, child: "subprocess.Popen[bytes]") -> None:
        """Forward signals to this child from now on, and send it those that came early."""
        self._child = child
        while self._early:
            self._send(child, self._early.pop(0))

    def restore(self) -> None:
        for number, former in self._before.items():
            signal.signal(number, former)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.were_received = True
        if self._child is None:
            self._early.append(number)
        elif number != signal.SIGINT or not in_foreground():
            self._send(self._child, number)

    @staticmethod
    def _send(child: "subprocess.Popen[bytes]", number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
