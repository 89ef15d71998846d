"""What whet's instruments cost, beside torch.profiler, TraceML and PyTorch Lightning's simple profiler, in one run.

    pip install lightning traceml-ai      # for the peers; where one is missing, its row says so
    python benchmarks/overhead.py [--rounds 100]      # about six minutes; writes docs/results/overhead.json

Three questions:

- what one use costs: an empty `with` block again and again, less the loop around it;
- what a training step of about 10 ms becomes: the same loop with and without, in short blocks, in random order in each
  round. What counts is the mean over a block, as a sampler's work falls on few steps; steps of twice the block's
  median, which are the machine's doing, are left out of all. Then the same on a model that does next to nothing, which
  shows the microseconds that are added to a step. The monitor samples four times as often as it does by default;
- whether the figures are right: layers against the whole call, FLOPs against FlopCounterMode, memory against what
  another process saw.

torch has one thread, so that the loop does not wait for its own second one. malloc is told to keep the pages that it
has (a process of its own is started for that): where it gives them back after each step, as it may or may not, page
faults scatter the steps by a fifth, whatever is measured. Lightning's simple profiler is called as its Trainer calls
it, around the data, forward, backward and optimiser of a step. TraceML's patches cannot be taken back, so it comes
last, and its own "without" is a loop outside its trace_step.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from overhead_accuracy import accuracies
from overhead_variants import (
    MISSING,
    STEPS_PER_BLOCK,
    Loop,
    Variant,
    per_use,
    traceml_running,
    traceml_variants,
    variants,
)
from rich import box
from rich.console import Console
from rich.table import Table

from whet.files import write_whole
from whet.machine import describe, versions
from whet.measure import compare, measure_calls

RESULT = Path(__file__).parents[1] / "docs" / "results" / "overhead.json"
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}  # of glibc
WITHOUT = "without"
_USES = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    if not KEEP_PAGES.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_PAGES})
    accurate = accuracies()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # what was imported is not the loop's: collections, which go on, need not go through it
    uses = {"whet: a measured call": measured_call_us(), **{name: cost_us(use) for name, use in per_use()}}
    loop, tiny = Loop.of_about(10.0), Loop(width=1, batch=1)
    steps = compared(variants, loop, tiny, rounds)
    step_ms = steps.pop(WITHOUT)["step_ms"]
    with traceml_running():
        steps |= compared(traceml_variants, loop, tiny, rounds)
        steps.pop(WITHOUT, None)
    machine = describe()
    report = {
        "command": "python benchmarks/overhead.py",
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": {**versions(), **{name: MISSING[name] or "missing" for name in sorted(MISSING)}},
        "num_pairs": rounds,
        "steps_per_block": STEPS_PER_BLOCK,
        "uses_us": uses,
        "step_ms": step_ms,
        "steps": steps,
        "accuracy": accurate,
    }
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")
    show(report)


def cost_us(use: Callable[[], Any]) -> float:
    """Microseconds of one use: median of seven runs, less the same loop over an empty function."""

    def run(function: Callable[[], Any]) -> float:
        started = time.perf_counter()
        for _ in range(_USES):
            function()
        return (time.perf_counter() - started) / _USES * 1e6

    def nothing() -> None:
        pass

    run(use)
    return statistics.median(run(use) - run(nothing) for _ in range(7))


def measured_call_us() -> float:
    """Microseconds that timing adds to each call: `measure_calls` of an empty function."""

    def nothing() -> None:
        pass

    def run(num_calls: int) -> float:
        started = time.perf_counter()
        measure_calls([nothing], budget_s=0.0, min_calls=num_calls)
        return time.perf_counter() - started

    return statistics.median(run(3 * _USES) - run(_USES) for _ in range(7)) / (2 * _USES) * 1e6 - cost_us(nothing)


def compared(make: Callable[[Loop], Iterator[tuple[str, Variant]]], loop: Loop, tiny: Loop, rounds: int) -> Any:
    """Each variant's overhead over the loop without it; that loop's own time under `WITHOUT`."""
    times, added = blocks(dict(make(loop)), rounds), blocks(dict(make(tiny)), rounds)
    if not times:
        return {}
    found: dict[str, Any] = {WITHOUT: {"step_ms": statistics.median(times[WITHOUT])}}
    for name in times:
        if name == WITHOUT:
            continue
        ratio = compare(times[WITHOUT], times[name])  # above 1 where the variant is faster
        more_us = [(b - a) * 1e3 for a, b in zip(added[WITHOUT], added[name], strict=True)]
        found[name] = {
            "overhead": 1 / ratio.ratio - 1,
            "ci95": [1 / ratio.ci95[1] - 1, 1 / ratio.ci95[0] - 1],
            "added_us": statistics.median(more_us),
        }
    return found


def blocks(run: dict[str, Variant], rounds: int) -> dict[str, list[float]]:
    """Milliseconds a step by variant; what was measured in one round has one index."""
    order = random.Random(0)
    for variant in run.values():
        variant()
    times: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(rounds):
        for name in order.sample(list(run), len(run)):
            times[name].append(run[name]())
    return times


def show(report: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="one use", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("µs", justify="right")
    for name, us in report["uses_us"].items():
        table.add_row(name, f"{us:.2f}")
    console.print(table)
    title = f"a step of {report['step_ms']:.1f} ms, {report['num_pairs']} pairs"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("", "overhead", "95 %", "µs a step"):
        table.add_column(name, justify="left" if not name else "right")
    for name, row in report["steps"].items():
        low, high = row["ci95"]
        table.add_row(name, f"{row['overhead']:+.2%}", f"{low:+.2%} to {high:+.2%}", f"{row['added_us']:.0f}")
    console.print(table)
    for name, version in MISSING.items():
        if version is None:
            console.print(f"{name}: not installed, so not measured")
    table = Table(title="whether the figures are right", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("", "layers / call", "FLOPs / counted", "peak / kernel's"):
        table.add_column(name, justify="left" if not name else "right")
    for row in report["accuracy"]:
        ratios = (row["layers_over_call"], row["flops_over_counted"], row["peak_over_kernel"])
        table.add_row(row["target"], *(f"{ratio:.3f}" for ratio in ratios))
    console.print(table)


if __name__ == "__main__":
    main()
