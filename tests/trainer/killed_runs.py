"""Processes of `whet train` that are killed at random moments and gone on with, and what is left of them.

Run as a script, it reads a command a line, as JSON, forks a child that has imported everything, prints "child PID", and
prints "ended CODE" when it is over. The child runs `whet` with these arguments.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

_MOST_S = 120.0


class Running(Protocol):
    """A run of `whet train`."""

    pid: int

    def wait(self) -> int: ...


def started(arguments: list[str], errors: Path) -> subprocess.Popen[bytes]:
    """Start `whet` in a new process, as a shell does."""
    with errors.open("ab") as file:
        return subprocess.Popen([sys.executable, "-m", "whet", *arguments], stdout=subprocess.DEVNULL, stderr=file)


class Forks:
    """Start `whet` as forks of a process that has imported it. A context manager."""

    def __enter__(self) -> "Forks":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._parent = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate()

    def start(self, arguments: list[str], errors: Path) -> Running:
        """Start one; the one before must be over."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps([arguments, str(errors)]) + "\n")
        self._parent.stdin.flush()
        return Fork(self._parent)


class Fork:
    """A fork that runs `whet`."""

    def __init__(self, parent: "subprocess.Popen[str]") -> None:
        self._parent = parent
        self.pid = int(self._said("child"))

    def wait(self) -> int:
        return int(self._said("ended"))

    def _said(self, what: str) -> str:
        assert self._parent.stdout is not None
        word, _, rest = self._parent.stdout.readline().partition(" ")
        assert word == what, (word, rest)
        return rest


def whole(start: Callable[[list[str], Path], Running], config: Path, errors: Path) -> None:
    """Make a run to its end."""
    assert start(["train", str(config)], errors).wait() == 0, errors.read_text()


def killed(
    start: Callable[[list[str], Path], Running], config: Path, out: Path, *, times: int, seed: int, errors: Path
) -> dict[str, int]:
    """Make a run that is killed at random moments, some of them while a checkpoint is written, and ends at last.

    Returns:
        How many kills there were, how many cut a checkpoint off, and how many came before the first checkpoint.
    """
    moments = random.Random(seed)
    seen = {"kills": 0, "cut off": 0, "before the first": 0}
    while seen["kills"] < times:
        resume = ["--resume"] if _checkpoints(out) else []
        running = start(["train", str(config), *resume], errors)
        later = _newest(out) + moments.randint(0, 5)
        moment = moments.choice(["any", "in a step", "in a checkpoint", "in a checkpoint"])
        if moment == "any":  # also while it starts, or takes up its state
            time.sleep(moments.uniform(0.0, 1.0))
        else:
            _until(lambda later=later: _logged(out) > later, errors)
        if moment == "in a step":
            time.sleep(moments.uniform(0.0, 0.05))
        if moment == "in a checkpoint":
            _until(lambda: any(".partial-" in name for name in _names(out)), errors)
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL, "it was still running: " + errors.read_text()
        seen["kills"] += 1
        seen["cut off"] += any(".partial-" in name for name in _names(out))
        seen["before the first"] += not _checkpoints(out)
    assert start(["train", str(config), "--resume"], errors).wait() == 0, errors.read_text()
    return seen


def _until(holds: Callable[[], bool], errors: Path) -> None:
    """Wait, without a pause: a checkpoint is written within milliseconds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < _MOST_S, errors.read_text()
        time.sleep(0.0002)


def _names(out: Path) -> list[str]:
    place = out / "checkpoints"
    return [path.name for path in place.iterdir()] if place.is_dir() else []


def _checkpoints(out: Path) -> list[str]:
    return sorted(name for name in _names(out) if name.startswith("step-"))


def _newest(out: Path) -> int:
    return max((int(name.split("-")[1]) for name in _checkpoints(out)), default=0)


def _logged(out: Path) -> int:
    """Return the step of the last whole line of the log."""
    file = out / "log.jsonl"
    lines = file.read_text(errors="replace").split("\n")[:-1] if file.is_file() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def left(out: Path) -> dict[str, Any]:
    """Return what a run left that must not depend on where it was cut: tensors by file, and the figures of its log."""
    from safetensors.torch import load_file

    last = out / "checkpoints" / _checkpoints(out)[-1]
    files = [*sorted(last.glob("*.safetensors")), *sorted((out / "model").glob("*.safetensors"))]
    figures = ("step", "tokens", "loss", "lr", "gradient_norm", "held_out_loss")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    values = json.loads((last / "state.json").read_text())
    values["run"].pop("seconds")
    return {
        "last": last.name,
        "tensors": {f"{file.parent.name}/{file.name}": load_file(file) for file in files},
        "log": [{name: line.get(name) for name in figures} for line in lines],
        "values": values,
    }


def main() -> None:
    import transformers  # noqa: F401 - the children need not import it again
    from transformers.models.gpt2 import modeling_gpt2  # noqa: F401

    from whet.cli import main as whet
    from whet.cli import train, typed  # noqa: F401
    from whet.trainer import loop  # noqa: F401

    for line in sys.stdin:
        arguments, errors = json.loads(line)
        if pid := os.fork():
            print("child", pid, flush=True)
            print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
        whet(arguments)
        sys.exit(0)


if __name__ == "__main__":
    main()
