"""Python programs as forks of one process that has imported torch: what a short program would spend most time on.

For documents with many small programs. That a program starts by itself is tested where it is the point. What whet
starts is forked too: run this within `forked_children.server()`.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from whet.measure.fast_import import import_large

_PRELOAD = ("torch", "torch._dynamo", "whet.tuner.tuning")  # any optimizer imports the second
_TESTS = str(Path(__file__).parents[1])


class ForkedPython:
    """Stands in for sys.executable. A context manager: the process ends with it."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)  # with what a program of its has left, or waits for
        self._server.communicate()

    def run(self, arguments: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
        """As subprocess.run([sys.executable, *arguments], cwd=directory, capture_output=True, text=True)."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        logs = [directory / f".{name}" for name in ("stdout", "stderr")]
        self._server.stdin.write(json.dumps([list(arguments), str(directory), *map(str, logs)]) + "\n")
        self._server.stdin.flush()
        returncode = int(self._server.stdout.readline())
        done = subprocess.CompletedProcess(list(arguments), returncode, *(log.read_text() for log in logs))
        for log in logs:
            log.unlink()
        return done


def _forked() -> tuple[list[str], str, str, str]:
    """Fork for each line of stdin, one after the other. Returns in the forks alone."""
    for name in _PRELOAD:
        import_large(name)
    sys.path.append(_TESTS)
    import_large("forked_children").use(pytest.MonkeyPatch())
    sys.path.remove(_TESTS)
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            arguments, directory, stdout, stderr = json.loads(line)
            return arguments, directory, stdout, stderr
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _become(arguments: list[str], directory: str, stdout: str, stderr: str) -> None:
    """What `python ARGUMENTS` does, in a process that is one already."""
    os.chdir(directory)
    for descriptor, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    match arguments:
        case ["-m", module, *rest]:
            sys.argv, sys.path[0] = [module, *rest], directory
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", code]:
            sys.argv, sys.path[0] = ["-c"], ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), main.__dict__)
        case [path, *rest]:
            sys.argv, sys.path[0] = [path, *rest], str(Path(path).absolute().parent)
            runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    _become(*_forked())
