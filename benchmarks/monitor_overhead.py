"""What whet.Monitor costs a training step of about 10 ms: the same loop with and without it, block by block in turn.

    python benchmarks/monitor_overhead.py [--rounds 24]     # about a minute; writes docs/results/monitor_overhead.json

Three variants, in random order in every round: without; `monitor.step()` in the loop, page served; one line, steps
taken from torch by patching, page served. Samples are taken four times as often as by default, so that a block has
some. What counts is the mean over a block, as the sampler's work falls on few steps; steps of twice the block's median,
which are the machine's doing (a sample takes a hundredth of one), are left out of all. torch has one thread, so that
the loop does not wait for its own second one. Beside it what single parts cost: a call of step(), and a sample.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whet
from whet.files import write_whole
from whet.machine import versions
from whet.measure import compare

RESULT = Path(__file__).parent.parent / "docs" / "results" / "monitor_overhead.json"
TARGET = 0.01
WARM_UP, STEPS = 5, 50
INTERVAL_S = 0.25

Variant = Callable[[], float]


class Loop:
    """A training loop whose step takes about `wanted_ms`, found by trying batch sizes."""

    def __init__(self, wanted_ms: float = 10.0) -> None:
        self.model = nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for size in (16, 32, 64, 96, 128, 192, 256, 384, 512):
            self.batch_size = size
            if self.mean_ms(None) >= wanted_ms:
                break

    def mean_ms(self, monitor: "whet.Monitor | None") -> float:
        """Milliseconds a step, over a block after its warm-up. monitor: whose step() is called."""
        samples: list[float] = []
        num = (WARM_UP + STEPS) * self.batch_size
        data = TensorDataset(torch.randn(num // 8, 512), torch.randint(0, 10, (num // 8,)))
        loader = DataLoader(data, batch_size=self.batch_size)
        ended = time.perf_counter()
        while True:
            for x, y in loader if monitor is None else monitor.batches(loader):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                if monitor is not None:
                    monitor.step(num_samples=len(x))
                began, ended = ended, time.perf_counter()
                samples.append((ended - began) * 1e3)
                if len(samples) == WARM_UP + STEPS:
                    return _mean(samples[WARM_UP:])


def _mean(samples_ms: list[float]) -> float:
    limit = 2 * statistics.median(samples_ms)
    return statistics.fmean(sample for sample in samples_ms if sample < limit)


def variants(loop: Loop) -> dict[str, Variant]:
    def without() -> float:
        return loop.mean_ms(None)

    def by_step() -> float:
        with whet.Monitor(port=0, show=False, interval_s=INTERVAL_S, watch=False) as monitor:
            return loop.mean_ms(monitor)

    def by_one_line() -> float:
        with whet.Monitor(port=0, show=False, interval_s=INTERVAL_S):
            return loop.mean_ms(None)

    return {"without": without, "monitor.step()": by_step, "one line": by_one_line}


def parts() -> dict[str, float]:
    """What a call of step() takes, and what a sample takes of the process's CPU time."""
    with whet.Monitor(port=0, show=False, watch=False, interval_s=3600.0) as monitor:
        began = time.perf_counter()
        for _ in range(20_000):
            monitor.step(num_samples=1)
        step_us = (time.perf_counter() - began) / 20_000 * 1e6
        began = time.process_time()
        for _ in range(50):
            monitor._sampler.sample()
        sample_ms = (time.process_time() - began) / 50 * 1e3
    return {"step_call_us": step_us, "sample_ms": sample_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loop, order = Loop(), random.Random(0)
    run = variants(loop)
    for measure in run.values():
        measure()
    times: dict[str, list[float]] = {name: [] for name in run}
    for _ in range(rounds):
        for name in order.sample(list(run), len(run)):
            times[name].append(run[name]())
    machine = whet.describe()
    result: dict[str, object] = {
        "command": f"python benchmarks/monitor_overhead.py --rounds {rounds}",
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": versions(),
        "step_ms": sum(times["without"]) / rounds,
        "num_pairs": rounds,
        "steps_per_block": STEPS,
        "interval_s": INTERVAL_S,
        "target": TARGET,
        **parts(),
    }
    print(f"a step without: {result['step_ms']:.2f} ms, {rounds} pairs of blocks of {STEPS} steps")
    overheads: dict[str, object] = {}
    for name in ("monitor.step()", "one line"):
        # original / variant above 1 is a gain, so the overhead is its inverse less 1
        found = compare(times["without"], times[name])
        low, high = 1 / found.ci95[1] - 1, 1 / found.ci95[0] - 1
        overheads[name] = {"overhead": 1 / found.ratio - 1, "ci95": [low, high], "blocks_ms": times[name]}
        print(f"{name:<15} {1 / found.ratio - 1:+.2%}, 95 % interval {low:+.2%} to {high:+.2%} (target < {TARGET:.0%})")
    print(f"a call of step(): {result['step_call_us']:.2f} µs")
    print(f"a sample: {result['sample_ms']:.2f} ms of CPU time")
    result |= {"overheads": overheads, "without_blocks_ms": times["without"]}
    write_whole(RESULT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
