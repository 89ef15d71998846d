"""What whet.watch costs: the same training loop with it and without it, in interleaved pairs.

    python benchmarks/watch_overhead.py [--rounds 110]     # about a minute; writes docs/results/watch_overhead.json

Steps of about 10 ms on one core: a forward pass, cross entropy, backward, AdamW, and loss.item(). A round times ten
steps in each of four loops, in random order: over a list of batches, without and with whet.watch; over a DataLoader,
without and with watch_everything, which `whet profile --step` and `whet monitor` use. Then the same on a model that
does next to nothing, which shows the microseconds that are added to a step.

malloc is told to keep the pages that it has (a process of its own is started for that): where it gives them back after
each step, as it may or may not, page faults scatter the steps by a fifth, whatever is measured.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from whet.files import write_whole
from whet.machine import describe
from whet.machine.versions import versions
from whet.measure.stats import compare, noise_floor
from whet.steps.watch import watch, watch_everything

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NUM_STEPS = 10  # of a block
NUM_CLASSES = 10
PAIRS = {"watch": "list", "watch_everything": "loader"}  # what is watched, and the same loop without
TARGET_PERCENT = 1.0
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}  # of glibc
WARM_UP_ROUNDS = 5

Batches = list[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=110)
    rounds = parser.parse_args().rounds
    if not KEEP_PAGES.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_PAGES})
    torch.set_num_threads(1)
    machine = describe()
    gc.collect()
    gc.freeze()  # what was imported is not the loop's: collections, which go on, need not go through it
    loop = Loop(width=640, batch=192)
    times = measure(loop, rounds)
    tiny = measure(Loop(width=1, batch=1), 4 * rounds)
    report: dict[str, Any] = {
        "command": f"python benchmarks/watch_overhead.py --rounds {rounds}",
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": versions(),
        "step_ms": statistics.median(times["list"]) / NUM_STEPS * 1e3,
        "num_pairs": rounds,
        "steps_per_block": NUM_STEPS,
        "target_percent": TARGET_PERCENT,
        "noise_percent": (noise_floor([times[plain] for plain in PAIRS.values()], num_pairs=rounds) - 1) * 100,
        "variants": {name: overhead(times, tiny, name) for name in PAIRS},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS / "watch_overhead.json", json.dumps(report, indent=1) + "\n")
    show(report)


class Loop:
    """A training loop, its data ready."""

    def __init__(self, width: int, batch: int) -> None:
        self.model = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batches: Batches = [
            (torch.randn(batch, width), torch.randint(0, NUM_CLASSES, (batch,))) for _ in range(NUM_STEPS)
        ]

    def run(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """Seconds of one block."""
        started = time.perf_counter()
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            loss.item()
        return time.perf_counter() - started


def measure(loop: Loop, rounds: int) -> dict[str, list[float]]:
    """Seconds of each block by variant; the same round has the same index."""
    steps = watch(loop.model, loop.optimizer, loop.batches)
    loader = torch.utils.data.DataLoader(loop.batches, batch_size=None)  # what watch_everything can see
    variants: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Any]] = {
        "list": (nullcontext, loop.batches),
        "watch": (lambda: steps, steps),
        "loader": (nullcontext, loader),
        "watch_everything": (watch_everything, loader),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = random.Random(0)
    for index in range(WARM_UP_ROUNDS + rounds):
        for name in order.sample(list(variants), len(variants)):
            context, batches = variants[name]
            with context():
                loop.run(batches)  # caches; and the first step after patching is not like the others
                taken = loop.run(batches)
            if index >= WARM_UP_ROUNDS:
                times[name].append(taken)
    return times


def overhead(times: dict[str, list[float]], tiny: dict[str, list[float]], name: str) -> dict[str, Any]:
    """Of a variant over the same loop without it."""
    plain = PAIRS[name]
    found = compare(times[plain], times[name])
    low, high = found.ci95
    added = [(b - a) / NUM_STEPS * 1e6 for a, b in zip(tiny[plain], tiny[name], strict=True)]
    return {
        "overhead_percent": (1 / found.ratio - 1) * 100,
        "ci95_percent": [(1 / high - 1) * 100, (1 / low - 1) * 100],
        "p_value": found.p_value,
        "added_us_per_step": statistics.median(added),
    }


def show(report: dict[str, Any]) -> None:
    title = f"steps of {report['step_ms']:.1f} ms, {report['num_pairs']} pairs, noise {report['noise_percent']:.2f} %"
    table = Table(title=title, title_justify="left")
    for name in ("", "overhead", "95 %", "added to a step"):
        table.add_column(name, justify="left" if not name else "right")
    for name, row in report["variants"].items():
        low, high = row["ci95_percent"]
        table.add_row(
            name,
            f"{row['overhead_percent']:.2f} %",
            f"{low:.2f} – {high:.2f} %",
            f"{row['added_us_per_step']:.0f} µs",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
