"""Find out what the processes of a run send each other: its bytes, the time that it costs, and lost precision."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributed
from torch.profiler import record_function

from whet.core.workload.training import Trainer
from whet.parallel.compression import Compression, Sample
from whet.parallel.division import Division
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.wire import WireCount
from whet.profiling.model.operators import start_tracer, stop_tracer
from whet.profiling.trace.account import TimeCategory
from whet.profiling.trace.report import analyse_file
from whet.ui.figures import digits, duration, num_bytes

_COUNTED = 5  # the step of this start, of those that compress, whose bytes are counted; the next one is timed


@dataclass(frozen=True)
class StepTime:
    """Hold the time of a step of this process, and how much of it passed in communication alone."""

    exposed_s: float
    step_s: float


class Communication:
    """Make the steps of a run, and look at what two of them send. One process alone sends nothing.

    Attributes:
        is_watched: Whether the latest step was slower than others, since it was looked at.
    """

    def __init__(self, trainer: Trainer, division: Division) -> None:
        self._trainer, self._division = trainer, division
        self.compression: Compression | None = trainer.compression if isinstance(trainer, RankTrainer) else None
        self._step, self._counted = 0, _COUNTED
        self._wire: WireCount | None = None
        self._time: StepTime | None = None
        self.is_watched = False

    def step_on(self, batches: list[Any]) -> float:
        """Make a step on this process's rows, and return the loss of all rows."""
        self._step += 1
        if self._step == 1 and self.compression is not None:
            self._counted = self.compression.num_whole + _COUNTED
        self.is_watched = not self._division.is_alone and self._step in (self._counted, self._counted + 1)
        if not self.is_watched:
            return float(self._trainer.step_on(batches))
        if self._step == self._counted:
            with WireCount() as self._wire:
                return float(self._trainer.step_on(batches))
        loss, self._time = timed(lambda: float(self._trainer.step_on(batches)), self._division)
        return loss

    def warnings(self) -> list[str]:
        """Return what compression changed by more than it should."""
        if self.compression is None:
            return []
        name, bound = self._division.plan.compression, self.compression.bound
        return [warning(name, sample, bound) for sample in self.compression.samples if sample.relative_error > bound]

    def notes(self) -> list[str]:
        """Return what a step sent, and how near the gradients were to exact ones."""
        found = []
        if self._wire is not None and self._time is not None:
            wire, time = self._wire, self._time
            kinds = ", ".join(f"{kind} {num_bytes(size)}" for kind, size in wire.num_bytes.most_common())
            found.append(
                f"communication: {num_bytes(wire.total_bytes)} a step on the wire from each process ({kinds}), "
                f"{duration(time.exposed_s)} of {duration(time.step_s)} exposed"
            )
            if wire.uncounted:
                found.append(f"communication of {', '.join(sorted(wire.uncounted))} is not counted")
        if self.compression is not None and self.compression.samples:
            samples = self.compression.samples
            steps = ", ".join(str(sample.step) for sample in samples)
            found.append(
                f"compression {self._division.plan.compression}: the gradient differs from the exact one by at most "
                f"{max(one.relative_error for one in samples):.2g} of its norm, with a cosine of at least "
                f"{min(one.cosine for one in samples):.6f} (in the steps {steps})"
            )
        return found


def warning(name: str, sample: Sample, bound: float) -> str:
    """Return what to say of a step whose gradient compression changed by more than its bound."""
    cause, mend = {
        "fp16": ("the gradients are below fp16's range", "set it to bf16, or leave it out"),
        "bf16": ("the processes' gradients cancel each other", "leave it out"),
        "powersgd": ("what is sent late outweighs the gradient", "raise parallel.powersgd_rank, or leave it out"),
    }[name]
    return (
        f"parallel.compression {name} changes the gradient of step {sample.step} by {digits(sample.relative_error)} of "
        f"its norm, more than {digits(bound)}: {cause}, so that training may not converge as without it; {mend}"
    )


def timed(step: Callable[[], float], division: Division) -> tuple[float, StepTime]:
    """Make a step that PyTorch's profiler records, and return its loss and its time. All processes must call this."""
    tracer = start_tracer(cuda=division.device.type == "cuda", details=False)
    try:
        division.total_of_all([0])  # starting takes some processes longer than others
        with _waits_named(), record_function("ProfilerStep#0"):
            loss = step()
    finally:
        stop_tracer(tracer)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "step.json"
        tracer.export_chrome_trace(str(path))
        report = analyse_file(path)
    exposed_ns = sum(one.time_ns for one in report.account if one.entry == TimeCategory.COMMUNICATION)
    return loss, StepTime(exposed_ns / 1e9, report.window_ns / 1e9)


@contextmanager
def _waits_named() -> Iterator[None]:
    """Name waits for other processes in the trace, as gloo names its collectives, but not its sends."""
    wait = distributed.Work.wait

    def named(work: distributed.Work, *args: Any, **kwargs: Any) -> Any:
        with record_function("gloo:wait"):
            return wait(work, *args, **kwargs)

    distributed.Work.wait = named  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        distributed.Work.wait = wait  # type: ignore[method-assign]
