"""Processes that save, hold locks, and are killed by the tests. They are forks of one that has imported torch.

Run as a script, it reads a command a line, "save DIRECTORY", "hold DIRECTORY" or "lock DIRECTORY", forks a child for
it, and prints "child PID". The child prints what it has done.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_MOST_S = 60.0


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole, even if the process is killed thereafter


def save_constantly(directory: Path) -> None:
    """Resume from the newest checkpoint, then save one step after the other without a pause."""
    from small_states import check_step, state_of_step

    from whet.trainer.checkpoints import Checkpoints, RunLock

    with RunLock(directory), Checkpoints(directory, keep=2) as checkpoints:
        found = checkpoints.newest()
        step = 0 if found is None else found.step
        if found is not None:
            check_step(checkpoints.load(found.path), step)
        say("resumed", step)
        while True:
            step += 1
            checkpoints.save(step, state_of_step(step, 40_000))
            say("copied", step)


def hold_a_partial(directory: Path) -> None:
    """Begin to write a checkpoint, and never end."""
    from small_states import state_of_step

    from whet.trainer.checkpoints import Checkpoints, writing

    def never(*_: Any) -> Any:
        say("writing")
        threading.Event().wait(_MOST_S)

    writing._write = never
    Checkpoints(directory).save(5, state_of_step(5), wait=True)


def hold_the_lock(directory: Path) -> None:
    from whet.trainer.checkpoints import RunLock

    with RunLock(directory):
        say("locked")
        threading.Event().wait(_MOST_S)


COMMANDS = {"save": save_constantly, "hold": hold_a_partial, "lock": hold_the_lock}


def main() -> None:
    import torch  # noqa: F401 - the children need not import it again

    import whet.trainer.checkpoints  # noqa: F401

    for line in sys.stdin:
        command, directory = line.split(maxsplit=1)
        if pid := os.fork():
            say("child", pid)
            os.waitpid(pid, 0)
            say("ended")
            continue
        try:
            COMMANDS[command](Path(directory.strip()))
        except BaseException as error:  # noqa: BLE001 - it is told, and the process ends
            say("failed", repr(error))
        finally:
            os._exit(1)


class Children:
    """Start children and end them, one at a time."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.pid = 0

    def start(self, command: str, directory: Path, until: str) -> list[str]:
        """Start a child, and return what it says until a line begins with a word."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(f"{command} {directory}\n")
        self._parent.stdin.flush()
        lines = self._read("child")
        self.pid = int(lines[-1].split()[1])
        return self._read(until)

    def kill(self) -> list[str]:
        """Kill the child, and return what it had said."""
        os.kill(self.pid, signal.SIGKILL)
        return self._read("ended")

    def _read(self, until: str) -> list[str]:
        assert self._parent.stdout is not None
        lines = []
        for line in self._parent.stdout:
            lines.append(line.strip())
            assert not line.startswith("failed"), line
            if line.startswith(until):
                return lines
        raise AssertionError(f"the processes ended: {lines}")

    def close(self) -> None:
        self._parent.communicate()


if __name__ == "__main__":
    main()
