"""whet stream beside diffusers' own loop and OpenVINO int8, with the U-Net of signs-stream on the processor.

    python benchmarks/stream_peers.py [--model DIR] [--hold SECONDS] [--parts pairs,holds,memory,shaped,guide]

pairs   Final frames a second at 1, 2 and 4 steps. Every side has a process of its own, in which its model waits for its
        turns; a round goes through all sides and steps, every second round backwards. Each of --sets sets has fresh
        processes. diffusers' side is LCMScheduler around the eager U-Net. OpenVINO's is the U-Net in int8, quantised by
        NNCF on frames of the clip, in a plain loop of the same sums. What a stream adds to its model's time comes from
        the same turns: synthetic source, no sink.
holds   25 FPS at 4 steps and 62.5 FPS at 1 step, from frames that come at their times, for --hold seconds.
memory  Resident memory over one stream of 10,000 frames at 1 step.
shaped  A pipeline of Stable Diffusion's shape at 256 x 256 pixels, beside diffusers' img2img pipeline.
guide   The claims of a guide, measured again (stream_guide.py), on the processor and on a GPU where there is one.

Without --model, the U-Net has random weights, which changes no time. The default takes about a quarter of an hour; for
the goals, --hold is 600. A disturbed part ends the script; those before it are written. --parts measures some parts
anew, and keeps the others of the same machine and versions.

Writes docs/results/stream_peers.MACHINE.json; `benchmarks/results.py` makes the tables. --quick tries everything with
small models on a machine that need not be quiet, prints the lines and writes nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from circumstances import circumstances
from quietly import quiet_machine
from stream_shaped import PIXELS, SHAPED_SIDES, WIDTHS, write_pipeline
from stream_tables import GOALS, stream_lines
from stream_variants import SIDES, TUNED, TUNED_DIRECTORY, write_int8, write_random_unet
from stream_worker import started

from whet.files import write_whole
from whet.measure.load import environment
from whet.measure.machine import describe, versions
from whet.models.diffusion.unet import UNetConfig

RESULTS = Path(__file__).parents[1] / "docs" / "results"
STEPS = (1, 2, 4)
HELD = ((25.0, 4), (62.5, 1))  # frames a second, at so many steps
_QUICK_CONFIG = UNetConfig(frame_size=32, grey_size=8, widths=(16, 24), embedding=32)
_QUICK_WIDTHS = (32, 64)
_LEAST_FRAMES = 8

Report = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    report = _start_of_report(arguments)
    parts: dict[str, Callable[[Path, argparse.Namespace, Report], Any]] = {
        "pairs": _pairs,
        "holds": _holds,
        "memory": _memory,
        "shaped": _shaped,
        "guide": _guide,
    }
    with tempfile.TemporaryDirectory(prefix="whet-stream-") as scratch:
        directory = _prepared(Path(scratch) / "unet", arguments)
        for name in arguments.parts:
            print(f"{name} ...", file=sys.stderr)
            report[name] = parts[name](directory, arguments, report)
            _write(report, arguments)
    print("\n".join(stream_lines(report)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="directory of a trained U-Net of signs-stream; default: random weights"
    )
    parser.add_argument(
        "--tuned", type=Path, nargs="+", default=[], help="what whet tune made of it, for one step and others"
    )
    parser.add_argument("--parts", default="pairs,holds,memory,shaped,guide", help="comma-separated: %(default)s")
    parser.add_argument("--sets", type=int, default=3, help="sets of fresh processes; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a set; default: %(default)s")
    parser.add_argument("--frames", type=int, default=120, help="frames of a turn, times steps; default: %(default)s")
    parser.add_argument("--hold", type=float, default=45.0, help="seconds that each rate is held; default: %(default)s")
    parser.add_argument("--memory-frames", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--shaped-steps", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="try the script with small models; write nothing")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    for name in arguments.parts:
        if name not in ("pairs", "holds", "memory", "shaped", "guide"):
            parser.error(f"there is no part {name!r}; there are: pairs, holds, memory, shaped, guide")
    if arguments.quick:
        arguments.sets, arguments.rounds, arguments.frames = 1, 2, 16
        arguments.hold, arguments.memory_frames = 5.0, 200
    return arguments


def _path() -> Path:
    return RESULTS / f"stream_peers.{describe().fingerprint}.json"


def _start_of_report(arguments: argparse.Namespace) -> Report:
    options = f" --hold {arguments.hold:g}" + (f" --model {arguments.model}" if arguments.model else "")
    if arguments.tuned:
        options += f" --tuned {' '.join(place.name for place in arguments.tuned)}"
    weights = "random, from seed 0" if arguments.model is None else arguments.model.resolve().name
    report = {**circumstances(f"python benchmarks/stream_peers.py{options}"), "weights": weights}
    if arguments.quick or not _path().exists():
        return report
    earlier: Report = json.loads(_path().read_text(encoding="utf-8"))
    same = (earlier["machine"]["id"], earlier["versions"], earlier["weights"])
    return {**earlier, **report} if same == (describe().fingerprint, versions(), weights) else report


def _write(report: Report, arguments: argparse.Namespace) -> None:
    if not arguments.quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(_path(), json.dumps(report, indent=1) + "\n")


def _quiet(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if arguments.quick else quiet_machine()


def _prepared(directory: Path, arguments: argparse.Namespace) -> Path:
    """Return a directory of the U-Net, with its int8 model beside it where that is needed."""
    if arguments.model is None:
        write_random_unet(directory, _QUICK_CONFIG if arguments.quick else None)
    else:
        directory.mkdir()
        for name in ("config.json", "model.safetensors"):
            (directory / name).symlink_to((arguments.model / name).resolve())
    if arguments.tuned:
        (directory / TUNED_DIRECTORY).mkdir()
    for place in arguments.tuned:
        (directory / TUNED_DIRECTORY / place.name).symlink_to(place.resolve())
    if "pairs" in arguments.parts:
        write_int8(directory)
    return directory


def _sides(directory: Path) -> list[str]:
    """Return the sides that can be measured."""
    return [name for name in SIDES if name != TUNED or (directory / TUNED_DIRECTORY).exists()]


def _pairs(directory: Path, arguments: argparse.Namespace, report: Report) -> Any:
    """Return what each round measured, by steps and side."""
    rounds: list[dict[str, dict[str, Any]]] = []
    for _ in range(arguments.sets):
        with contextlib.ExitStack() as stack:
            stack.enter_context(_quiet(arguments))
            sides = _sides(directory)
            waiting = {name: stack.enter_context(started("frames", directory, name)) for name in sides}
            for number in range(arguments.rounds):
                answers: dict[str, dict[str, Any]] = {str(steps): {} for steps in STEPS}
                for steps in STEPS:
                    for name in sides[:: -1 if number % 2 else 1]:
                        num_frames = max(_LEAST_FRAMES, arguments.frames // steps)
                        answers[str(steps)][name] = waiting[name].ask(do="turn", steps=steps, num_frames=num_frames)
                rounds.append({count: {name: found[name] for name in sides} for count, found in answers.items()})
    return {"frames": arguments.frames, "sets": arguments.sets, "rounds": rounds}


def _fastest(report: Report, steps: int) -> str:
    """Return whet's side with the lowest median time, where it was measured."""
    rounds = report.get("pairs", {}).get("rounds")
    if not rounds:
        return next(side for side in SIDES if side not in GOALS)
    ours = [side for side in rounds[0][str(steps)] if side not in GOALS]
    return min(ours, key=lambda name: statistics.median(row[str(steps)][name]["s_per_frame"] for row in rounds))


def _holds(directory: Path, arguments: argparse.Namespace, report: Report) -> Any:
    """Return the stream's report of each rate. What disturbs it stands in there, so nothing is measured again."""
    found = []
    for rate, steps in HELD:
        side = _fastest(report, steps)
        with _quiet(arguments):
            pass  # it waits for a quiet machine
        with started("frames", directory, side) as waiting:
            held = waiting.ask(do="hold", steps=steps, rate=rate, seconds=arguments.hold)
        found.append({"rate": rate, "steps": steps, "side": side, "seconds": arguments.hold, "report": held})
    return found


def _memory(directory: Path, arguments: argparse.Namespace, report: Report) -> Any:
    """Return the resident memory over one stream. Other processes don't change it, so that they may run."""
    side = _fastest(report, 1)
    with started("frames", directory, side) as waiting:
        readings = waiting.ask(do="memory", steps=1, num_frames=arguments.memory_frames)
    return {"side": side, "readings": readings}


def _shaped(directory: Path, arguments: argparse.Namespace, report: Report) -> Any:
    """Return what each round measured of the pipelines, by side."""
    widths, pixels = (_QUICK_WIDTHS, 64) if arguments.quick else (WIDTHS, PIXELS)
    steps, sides = arguments.shaped_steps, list(SHAPED_SIDES)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="whet-shaped-") as scratch, contextlib.ExitStack() as stack:
        pipeline = write_pipeline(Path(scratch), widths, pixels)
        stack.enter_context(_quiet(arguments))
        waiting = {name: stack.enter_context(started("shaped", pipeline, name)) for name in sides}
        for number in range(arguments.sets):
            order = sides[:: -1 if number % 2 else 1]
            answers = {name: waiting[name].ask(do="turn", steps=steps, num_frames=2) for name in order}
            rounds.append({name: answers[name] for name in sides})
    return {"widths": list(widths), "pixels": pixels, "steps": steps, "sides": sides, "rounds": rounds}


def _guide(directory: Path, arguments: argparse.Namespace, report: Report) -> Any:
    """Return what the guide's claims were measured with, by device."""
    import torch

    found = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        size = "small" if arguments.quick else "full"
        with _quiet(arguments):
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("stream_guide.py")), device, size],
                env=os.environ | environment(),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        found.append(json.loads(done.stdout.rpartition("answer ")[2]))
    return found


if __name__ == "__main__":
    main()
