"""A side of benchmarks/stream_peers.py in a process of its own, which waits between its turns.

    python benchmarks/stream_worker.py KIND DIRECTORY SIDE

KIND names what is measured: "frames" for the frame U-Net (stream_variants.py), "shaped" for a pipeline of Stable
Diffusion's shape (stream_shaped.py). The process reads one task a line, as JSON, and prints one answer a line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from stream_variants import SIDES, Side, StreamSide

from whet.measure.load import environment
from whet.measure.memory import ResidentMemory
from whet.streamer.loop import Answer
from whet.streamer.sinks.sink import NullSink
from whet.streamer.sources.pacing import paced
from whet.streamer.sources.synthetic import SyntheticClip

_MARKS = 10  # readings of memory over a stream


def main() -> None:
    kind, directory, name = sys.argv[1:]
    side = open_side(kind, Path(directory), name)
    print("answer {}", flush=True)
    for line in sys.stdin:
        print("answer " + json.dumps(perform(side, json.loads(line))), flush=True)


def open_side(kind: str, directory: Path, name: str) -> Side:
    if kind == "shaped":
        from stream_shaped import SHAPED_SIDES

        return SHAPED_SIDES[name](directory)
    return SIDES[name](directory)


def perform(side: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a task finds. The task's "do" is turn, hold or memory; its other fields are that function's."""
    given = {name: value for name, value in task.items() if name != "do"}
    match task["do"]:
        case "turn":
            found: dict[str, Any] = side.turn(**given)
        case "hold":
            found = hold(side, **given)
        case _:
            found = memory(side, **given)
    return found


def hold(side: StreamSide, *, steps: int, rate: float, seconds: float) -> dict[str, Any]:
    """Stream a clip that comes as from a camera, with a budget of one interval, and return the stream's report."""
    num_frames = max(1, round(rate * seconds))
    with side.open(
        steps, lambda size: paced(SyntheticClip(num_frames, size=size, rate=rate)), budget_s=1 / rate
    ) as stream:
        return stream.run(NullSink()).to_dict()


def memory(side: StreamSide, *, steps: int, num_frames: int) -> dict[str, Any]:
    """Return the resident memory after each tenth of a stream, in bytes, by the number of frames that were answered."""
    every = max(1, num_frames // _MARKS)
    resident, found, num_answered = ResidentMemory(), {}, 0

    def note(_: Answer) -> None:
        nonlocal num_answered
        num_answered += 1
        if num_answered % every == 0:
            found[str(num_answered)] = resident()

    with side.open(steps, lambda size: SyntheticClip(num_frames, size=size)) as stream:
        stream.run(NullSink(), on_answer=note)
    resident.close()
    return found


class Waiting:
    """A side that waits in its process for tasks."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self._name, self._process = name, process
        self._answer()

    def ask(self, **task: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                found: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return found
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}")


@contextmanager
def started(kind: str, directory: Path, name: str) -> Iterator[Waiting]:
    """Start a side, and end its process with the block.

    Raises:
        RuntimeError: It cannot be opened; its own message is on stderr.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, kind, str(directory), name],
        env=os.environ | environment() | {"HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Waiting(name, process)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
