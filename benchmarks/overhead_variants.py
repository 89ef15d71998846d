"""The loops and instruments that benchmarks/overhead.py measures."""

import gc
import importlib.metadata
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import whet
from whet.profiling.step.log import StepRecord, Sums
from whet.profiling.step.phases import Phase
from whet.profiling.step.watch import watch_everything
from whet.scripts.monitor.steps import StepTotals, phases_of

WARM_UP, STEPS_PER_BLOCK = 4, 24
NUM_CLASSES = 10
EMPTYING_BYTES = 32 * 2**20  # more than the caches of a core and its share of the last one hold

Variant = Callable[[], float]
"""Milliseconds a step, over one block."""
Batches = Iterable[tuple[Tensor, Tensor]]
Named = Callable[[str], AbstractContextManager[Any]]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


MISSING = {package: _version(package) for package in ("lightning", "traceml-ai")}


class Loop:
    """A training loop, its data ready: forward, cross entropy, backward, AdamW, the loss as a number.

    empties_caches: before each step, `EMPTYING_BYTES` are gone through, in time that is not counted.
    """

    def __init__(self, width: int, batch: int, *, empties_caches: bool = False) -> None:
        self._emptying = torch.ones(EMPTYING_BYTES // 4) if empties_caches else None
        self.model = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, NUM_CLASSES)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        batches = [(torch.randn(batch, width), torch.randint(0, NUM_CLASSES, (batch,))) for _ in range(8)]
        self.loader = DataLoader([batches[i % 8] for i in range(WARM_UP + STEPS_PER_BLOCK)], batch_size=None)

    @classmethod
    def of_about(cls, wanted_ms: float) -> "Loop":
        """The first of a few batch sizes whose steps take at least so long."""
        for batch in (32, 64, 96, 128, 160, 192, 256, 320, 384, 512):
            loop = cls(640, batch)
            if loop.run() >= wanted_ms:
                return loop
        return loop

    def run(
        self,
        batches: Batches | None = None,
        step: Callable[[], AbstractContextManager[Any]] = nullcontext,
        ended: Callable[[], None] = lambda: None,
    ) -> float:
        """One block, plain. step: entered around each step after its batch is there. ended: called at its end."""
        gc.collect()  # what an instrument has made as it began is no step's
        samples, before = [], time.perf_counter()
        for x, y in self.loader if batches is None else batches:
            with step():
                before += self._emptied_s()
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                loss.item()
            ended()
            now = time.perf_counter()
            samples.append((now - before) * 1e3)
            before = now
        return _mean(samples[WARM_UP:])

    def run_in_parts(self, part: Named) -> float:
        """One block with a named context around each of its four parts."""
        gc.collect()
        samples, before = [], time.perf_counter()
        batches = iter(self.loader)
        while True:
            with part("data"):
                batch = next(batches, None)
            if batch is None:
                return _mean(samples[WARM_UP:])
            before += self._emptied_s()
            with part("forward"):
                loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            with part("backward"):
                self.optimizer.zero_grad()
                loss.backward()
            with part("optimizer"):
                self.optimizer.step()
                loss.item()
            now = time.perf_counter()
            samples.append((now - before) * 1e3)
            before = now

    def _emptied_s(self) -> float:
        """Seconds that emptying the caches took."""
        if self._emptying is None:
            return 0.0
        began = time.perf_counter()
        self._emptying.add_(1.0)
        return time.perf_counter() - began


def _mean(samples_ms: list[float]) -> float:
    limit = 2 * statistics.median(samples_ms)
    return statistics.fmean(sample for sample in samples_ms if sample < limit)


def variants(loop: Loop) -> Iterator[tuple[str, Variant]]:
    """All that can be taken away again, and the loop without."""
    steps = whet.watch(loop.model, loop.optimizer, loop.loader)

    def watched() -> float:
        with steps:
            return loop.run(steps)

    def watched_from_outside() -> float:
        with watch_everything(with_memory=False):
            return loop.run()

    def sections() -> float:
        with whet.profile() as profile:
            return loop.run_in_parts(profile.section)

    def monitored_by_step() -> float:
        with whet.Monitor(port=0, show=False, watch=False) as monitor:
            return loop.run(monitor.batches(loop.loader), ended=lambda: monitor.step(num_samples=8))

    def monitored() -> float:
        with whet.Monitor(port=0, show=False):
            return loop.run()

    def torch_profiler() -> float:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            return loop.run()

    yield "without", loop.run
    yield "whet.watch", watched
    yield "whet monitor, script untouched", watched_from_outside
    yield "whet.profile, four sections", sections
    yield "whet.Monitor, monitor.step()", monitored_by_step
    yield "whet.Monitor, one line", monitored
    yield "torch.profiler", torch_profiler
    if MISSING["lightning"] is not None:
        from lightning.pytorch.profilers import SimpleProfiler

        lightning = SimpleProfiler()
        yield "Lightning's simple profiler", lambda: loop.run_in_parts(lightning.profile)


def traceml_variants(loop: Loop) -> Iterator[tuple[str, Variant]]:
    """TraceML's trace_step, and a loop outside it; nothing where TraceML is not installed."""
    if MISSING["traceml-ai"] is None:
        return
    import traceml_ai

    yield "without", loop.run
    yield "TraceML", lambda: loop.run(step=lambda: traceml_ai.trace_step(loop.model))


@contextmanager
def traceml_running() -> Iterator[None]:
    """TraceML's aggregator in a process of its own, as `traceml run` starts it, and its patches in this one."""
    if MISSING["traceml-ai"] is None:
        yield
        return
    import traceml_ai

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="whet-traceml-") as scratch:
        command = [str(Path(sys.executable).with_name("traceml")), "serve", "--aggregator-port", str(port)]
        server = subprocess.Popen(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            server.stderr.readline()  # it is ready
            traceml_ai.init(mode="auto", aggregator_port=port, on_missing_aggregator="raise", logs_dir=scratch)
            yield
        finally:
            server.kill()  # it would wait for this process to end
            server.communicate()


def per_use() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is used again and again, with nothing in it."""
    with whet.profile() as profile:
        yield "whet: p.timer(...)", _entering(profile.timer("use"))
        yield "whet: p.section(...)", _entering(profile.section("use"))
    with whet.Monitor(port=0, show=False, interval_s=3600.0, watch=False) as monitor:
        yield "whet: monitor.step()", lambda: monitor.step(num_samples=8)
    record, sums, totals = StepRecord(0, 0, (10**6,) * len(Phase), (1,) * len(Phase), 0, 1), Sums(), StepTotals()
    yield "whet.watch: adding up a step, later", lambda: sums.add(record)
    yield "whet.Monitor: adding up a step, later", lambda: totals.add(record.seconds, phases_of(record), 8, None)
    yield "record_function, no profiler on", _by_name(torch.profiler.record_function)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield "record_function, torch.profiler on", _by_name(torch.profiler.record_function)
    if MISSING["lightning"] is not None:
        from lightning.pytorch.profilers import SimpleProfiler

        yield "Lightning's simple profiler", _by_name(SimpleProfiler().profile)


def _entering(entry: Any) -> Callable[[], None]:
    def use() -> None:
        with entry:
            pass

    return use


def _by_name(make: Named) -> Callable[[], None]:
    def use() -> None:
        with make("use"):
            pass

    return use
