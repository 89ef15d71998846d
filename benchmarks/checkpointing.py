"""For how long a training stands still when it saves a checkpoint, beside the bare copy of its tensors.

    python benchmarks/checkpointing.py [--sizes 130 1300] [--rounds 12] [--directory DIR] [--trial]

The training is a stack of linear layers with AdamW in float32, so that its state takes about so many MB: the parameters
and two moments. A round makes, in random order, one save (the state is taken from model, optimiser and generators, and
Checkpoints.save returns) and one bare copy of the same tensors into memory that is there already. Steps are made before
each, and after a save until the checkpoint is on the disk.

- The stall beyond the copy is the difference of a round's two times; its mean has a 95 % interval (Student's t over
  rounds). The aim is 5 % of a step at most.
- What a save costs afterwards is how much longer the steps took together while the thread wrote, beside as many median
  steps: the thread hashes and writes on a core that the training would have used.

Writes docs/results/checkpointing.json; benchmarks/results.py makes the table. --trial asks for no quiet machine, and
writes nothing.
"""

import argparse
import contextlib
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from quietly import quiet_machine
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit
from torch import Tensor, nn

from whet.files import write_whole
from whet.trainer.checkpoints import (
    Checkpoints,
    TrainingState,
    generator_state,
    model_tensors,
    optimizer_tensors,
)

AIM = 0.05  # of a step
RESULT = Path(__file__).parents[1] / "docs" / "results" / "checkpointing.json"
NUM_ROWS = 1024  # of a batch
SETTLING = 2  # steps before each copy


class Training:
    """Train a stack of linear layers whose state takes about so many MB."""

    def __init__(self, megabytes: int) -> None:
        torch.manual_seed(0)
        width = 1024 if megabytes < 500 else 2048
        num_layers = max(1, round(megabytes * 1e6 / (3 * 4 * width * width)))
        layers = [layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(NUM_ROWS, width)
        self.num_steps = 0

    def step(self) -> float:
        """Make a step, and return its seconds."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.num_steps += 1
        return time.perf_counter() - began

    def state(self) -> TrainingState:
        state = model_tensors(self.model) | optimizer_tensors(self.model, self.optimizer) | generator_state()
        state.values["step"] = self.num_steps
        return state


def one_case(megabytes: int, num_rounds: int, directory: Path, order: random.Random) -> dict[str, Any]:
    training = Training(megabytes)
    training.step()
    tensors = list(training.state().tensors.values())
    memory: list[Tensor] = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    times: dict[str, list[float]] = {"copy": [], "save": []}
    steps: list[float] = []
    lost: list[float] = []
    written: list[float] = []
    with Checkpoints(directory, keep=1) as checkpoints:
        checkpoints.reserve(training.state())
        for number in range(num_rounds + 1):
            for what in order.sample(list(times), 2):
                steps += [training.step() for _ in range(SETTLING)]
                took = _copy(training, memory) if what == "copy" else _save(training, checkpoints)
                if what == "save":
                    during = _steps_until_written(training, checkpoints)
                    lost.append(sum(during) - len(during) * statistics.median(steps))
                    assert checkpoints.last_written is not None
                    written.append(checkpoints.last_written.seconds)
                times[what].append(took)
            if number == 0:  # the first round warms everything up
                steps, lost, written = [], [], []
                times = {"copy": [], "save": []}
    step_s = statistics.median(steps)
    added = _interval([save - copy for save, copy in zip(times["save"], times["copy"], strict=True)])
    return {
        "state_bytes": sum(tensor.nbytes for tensor in tensors),
        "num_tensors": len(tensors),
        "step_ms": 1e3 * step_s,
        "copy_ms": 1e3 * statistics.median(times["copy"]),
        "save_ms": 1e3 * statistics.median(times["save"]),
        "added_ms": _scaled(added, 1e3),
        "added_share": _scaled(added, 1 / step_s),
        "written_s": statistics.median(written),
        "lost_s": _interval(lost),
        "num_rounds": num_rounds,
    }


def _copy(training: Training, memory: list[Tensor]) -> float:
    tensors = list(training.state().tensors.values())
    began = time.perf_counter()
    for place, tensor in zip(memory, tensors, strict=True):
        place.copy_(tensor)
    return time.perf_counter() - began


def _save(training: Training, checkpoints: Checkpoints) -> float:
    began = time.perf_counter()
    checkpoints.save(training.num_steps, training.state())
    return time.perf_counter() - began


def _steps_until_written(training: Training, checkpoints: Checkpoints) -> list[float]:
    last = checkpoints.last_written
    times = [training.step()]
    while checkpoints.last_written is last:
        times.append(training.step())
    checkpoints.wait()
    return times


def _interval(values: list[float]) -> dict[str, Any]:
    mean = statistics.fmean(values)
    width = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "ci95": [mean - width, mean + width]}


def _scaled(interval: dict[str, Any], factor: float) -> dict[str, Any]:
    return {"mean": factor * interval["mean"], "ci95": [factor * end for end in interval["ci95"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[130, 1300], help="MB of the states")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--directory", type=Path, help="where the checkpoints are written for the time; default: /tmp")
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    options = parser.parse_args()
    rows = []
    table = Table(
        "state", "step", "copy", "save", "beyond the copy", "of a step", "written in", "lost meanwhile", box=box.SIMPLE
    )
    for megabytes in options.sizes:
        quiet = contextlib.nullcontext() if options.trial else quiet_machine()
        with tempfile.TemporaryDirectory(dir=options.directory) as directory, quiet:
            row = one_case(megabytes, options.rounds, Path(directory), random.Random(0))
        rows.append(row)
        low, high = row["added_share"]["ci95"]
        table.add_row(
            f"{row['state_bytes'] / 1e6:,.0f} MB",
            f"{row['step_ms']:.0f} ms",
            f"{row['copy_ms']:.1f} ms",
            f"{row['save_ms']:.1f} ms",
            f"{row['added_ms']['mean']:.2f} ms",
            f"{row['added_share']['mean']:.2%} ({low:.2%} to {high:.2%})",
            f"{row['written_s']:.2f} s",
            f"{row['lost_s']['mean']:.2f} s",
        )
    Console(width=140).print(table)
    if not options.trial:
        sizes = " ".join(map(str, options.sizes))
        command = f"python benchmarks/checkpointing.py --sizes {sizes} --rounds {options.rounds}"
        write_whole(RESULT, json.dumps({**circumstances(command), "aim": AIM, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
