"""What whet's instruments cost, beside torch.profiler, TraceML and PyTorch Lightning's simple profiler, in one run.

    pip install lightning traceml-ai      # for the peers; where one is missing, its row says so
    python benchmarks/overhead.py [--rounds 120]      # about 25 minutes; writes docs/results/overhead.json

Three questions:

- what one use costs: an empty `with` block again and again, less the loop around it;
- what a training step of about 10 ms becomes: a block of the same loop with and a block without, one after the other,
  in random order. What counts is the mean over a block; steps of twice its median, which are the machine's doing, are
  left out of both. Then the same on a model that does next to nothing, which shows the microseconds that are added to
  a step: with the caches as they are, and with caches that each step empties, as large models do. What is done later,
  for many steps at a time, and by the monitor's thread once a second is in none of these blocks; it is measured alone;
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
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from overhead_accuracy import accuracies
from overhead_variants import (
    EMPTYING_BYTES,
    MISSING,
    STEPS_PER_BLOCK,
    Loop,
    Variant,
    per_use,
    traceml_running,
    traceml_variants,
    variants,
)
from quietly import quiet_machine
from rich import box
from rich.console import Console
from rich.table import Table

import whet
from whet.comparison.claim import claim_of
from whet.files import write_whole
from whet.measure.clock import measure_calls

RESULT = Path(__file__).parents[1] / "docs" / "results" / "overhead.json"
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}  # of glibc
WITHOUT = "without"
_USES = 20_000
_RESAMPLES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=120)
    rounds = parser.parse_args().rounds
    if not KEEP_PAGES.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_PAGES})
    accurate = accuracies()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # what was imported is not the loop's: collections, which go on, need not go through it
    with quiet_machine():
        uses, step_ms, steps = _measured(rounds)
    report = {
        **circumstances(
            "python benchmarks/overhead.py", {name: MISSING[name] or "missing" for name in sorted(MISSING)}
        ),
        "num_pairs": rounds,
        "steps_per_block": STEPS_PER_BLOCK,
        "uses_us": uses,
        "step_ms": step_ms,
        "steps": steps,
        "accuracy": accurate,
    }
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")
    show(report)


def _measured(rounds: int) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the cost of each use, the time of a step, and what each variant adds to it."""
    uses = {"whet: a measured call": measured_call_us(), **{name: cost_us(use) for name, use in per_use()}}
    uses["whet.Monitor: a sample, once a second"] = sample_us()
    loops = Loop.of_about(10.0), Loop(width=1, batch=1), Loop(width=1, batch=1, empties_caches=True)
    steps, step_ms = compared(variants, *loops, rounds)
    with traceml_running():
        steps |= compared(traceml_variants, *loops, rounds)[0]
    return uses, step_ms, steps


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


def sample_us() -> float:
    """Microseconds of CPU that the monitor's thread takes for one sample, the first after its caches were emptied."""
    taken = []
    with whet.Monitor(port=0, show=False, interval_s=3600.0, watch=False) as monitor:
        for _ in range(100):
            torch.ones(EMPTYING_BYTES // 4).add_(1.0)
            began = time.thread_time()
            monitor._sampler.sample()
            taken.append((time.thread_time() - began) * 1e6)
    return statistics.median(taken)


Make = Callable[[Loop], Iterator[tuple[str, Variant]]]


def compared(make: Make, loop: Loop, tiny: Loop, cold: Loop, rounds: int) -> tuple[dict[str, Any], float]:
    """Each variant's overhead over the loop without it, and that loop's own milliseconds a step."""
    times = pairs(dict(make(loop)), rounds)
    added, added_cold = (pairs(dict(make(one)), rounds) for one in (tiny, cold))
    found: dict[str, Any] = {}
    for name, (without, with_it) in times.items():
        ratio = claim_of(without, with_it)  # above 1 where the variant is faster
        found[name] = {
            "overhead": 1 / ratio.ratio - 1,
            "ci95": [1 / ratio.ci95[1] - 1, 1 / ratio.ci95[0] - 1],
            "added_us": _added_us(*added[name])[0],
            "added_cold_us": _added_us(*added_cold[name]),
        }
    alone = [ms for without, _ in times.values() for ms in without]
    return found, statistics.median(alone) if alone else math.nan


def _added_us(without_ms: Sequence[float], with_ms: Sequence[float]) -> tuple[float, float, float]:
    """Microseconds a step: the median over pairs, and its 95 % interval (a bootstrap over pairs)."""
    more_us = [(b - a) * 1e3 for a, b in zip(without_ms, with_ms, strict=True)]
    order = random.Random(0)
    medians = sorted(statistics.median(order.choices(more_us, k=len(more_us))) for _ in range(_RESAMPLES))
    return statistics.median(more_us), medians[round(0.025 * _RESAMPLES)], medians[round(0.975 * _RESAMPLES) - 1]


def pairs(run: dict[str, Variant], rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds a step by variant: of blocks without it, and of the blocks with it that ran beside those."""
    order = random.Random(0)
    for variant in run.values():
        variant()
    without = run.pop(WITHOUT, None)
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in run}
    for _ in range(rounds if without else 0):
        for name in order.sample(list(run), len(run)):
            two = [(without, times[name][0]), (run[name], times[name][1])]
            for variant, kept in order.sample(two, 2):
                assert variant is not None
                kept.append(variant())
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
    for name in ("", "overhead", "95 %", "µs a step", "caches emptied"):
        table.add_column(name, justify="left" if not name else "right")
    for name, row in report["steps"].items():
        low, high = row["ci95"]
        middle, least, most = row["added_cold_us"]
        added = f"{row['added_us']:.0f}", f"{middle:.0f} ({least:.0f} to {most:.0f})"
        table.add_row(name, f"{row['overhead']:+.2%}", f"{low:+.2%} to {high:+.2%}", *added)
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
