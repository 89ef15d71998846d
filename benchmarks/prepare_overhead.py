"""What whet.prepare itself costs a step, in microseconds, beside the same loop without it.

    python benchmarks/prepare_overhead.py [--pairs 60] [--steps 200]      # writes docs/results/prepare_overhead.json

Each variant trains a model of 12 small blocks on one thread, beside the plain loop: 200 steps of one and 200 of the
other, in random order, again and again. A pair's difference is that of the medians of its steps. The table shows the
mean difference with its 95% interval (Student's t over pairs); the aim is 50 us at most. It takes about 3 minutes on a
quiet machine. The variants:

- empty: whet.prepare with an empty recipe;
- wrappers: every block, the last layer and the model have a changed forward that does nothing but call the first one,
  as autocast, checkpointing and chunked_loss change them; what these compute is not counted;
- parts: whet.micro_batches in a loop whose recipe splits nothing;
- guards: a recipe whose technique is in place already, so that only the optimiser's hooks for checkpoints are new.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from circumstances import circumstances
from quietly import quiet_machine
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit
from torch import Tensor, nn

import whet
from whet.core.recipe import Recipe, Step
from whet.files import write_whole
from whet.techniques.mechanisms.module_class import AddedForward, extend

AIM_US = 50.0
RESULT = Path(__file__).parents[1] / "docs" / "results" / "prepare_overhead.json"
WIDTH, NUM_BLOCKS, BATCH = 16, 12, 8
Loop = Callable[[], Iterator[None]]


class Nothing(AddedForward):
    """Call the first forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)  # type: ignore[misc]


class Block(nn.Module):
    """Add one product to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + F.gelu(self.linear(self.norm(x)))
        return out


def made() -> tuple[nn.Sequential, torch.optim.Optimizer, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, optimizer, [torch.randn(BATCH, WIDTH) for _ in range(8)]


def endless(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[Tensor]) -> Iterator[None]:
    while True:
        for x in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()
            yield


def plain() -> Iterator[None]:
    return endless(*made())


def empty() -> Iterator[None]:
    return endless(*whet.prepare(*made(), recipe=Recipe(kind="training")))


def wrappers() -> Iterator[None]:
    model, optimizer, loader = made()
    for module in (model, *model):
        extend(module, Nothing)
    return endless(model, optimizer, loader)


def parts() -> Iterator[None]:
    model, optimizer, loader = whet.prepare(*made(), recipe=Recipe(kind="training"))
    while True:
        for batch in loader:
            optimizer.zero_grad()
            for x in whet.micro_batches(model, batch):
                F.mse_loss(model(x), x).backward()
            optimizer.step()
            yield


def guards() -> Iterator[None]:
    recipe = Recipe(kind="training", steps=(Step(technique="fused_optimizer"),))
    return endless(*whet.prepare(*made(), recipe=recipe))


VARIANTS: dict[str, Loop] = {
    "plain again": plain,
    "empty": empty,
    "wrappers": wrappers,
    "parts": parts,
    "guards": guards,
}


def median_us(loop: Iterator[None], num_steps: int) -> float:
    found = []
    for _ in range(num_steps):
        began = time.perf_counter_ns()
        next(loop)
        found.append((time.perf_counter_ns() - began) / 1e3)
    return statistics.median(found)


def differences(variant: Loop, num_pairs: int, num_steps: int) -> tuple[list[float], float]:
    """The differences of the pairs, and the plain loop's own step, in us."""
    loops = {"old": plain(), "new": variant()}
    for loop in loops.values():
        median_us(loop, num_steps)
    found, own = [], []
    for _ in range(num_pairs):
        order = random.sample(list(loops), 2)
        times = {name: median_us(loops[name], num_steps) for name in order}
        found.append(times["new"] - times["old"])
        own.append(times["old"])
    return found, statistics.median(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "variant", "added us a step", "95% interval", "plain step, us", f"at most {AIM_US:g}?", box=box.SIMPLE
    )
    rows = []
    with quiet_machine():
        for name, variant in VARIANTS.items():
            found, own = differences(variant, options.pairs, options.steps)
            mean = statistics.fmean(found)
            width = float(stdtrit(len(found) - 1, 0.975)) * statistics.stdev(found) / len(found) ** 0.5
            verdict = "yes" if mean + width <= AIM_US else "no"
            table.add_row(name, f"{mean:.1f}", f"{mean - width:.1f} to {mean + width:.1f}", f"{own:.0f}", verdict)
            rows.append({"variant": name, "added_us": mean, "ci95": [mean - width, mean + width], "plain_us": own})
    Console().print(table)
    command = f"python benchmarks/prepare_overhead.py --pairs {options.pairs} --steps {options.steps}"
    report = {**circumstances(command), "aim_us": AIM_US, "variants": rows}
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
