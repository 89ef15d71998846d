"""The slowest operators of a run with their shapes, by torch.profiler."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # as torch.autograd.profiler itself does
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity

_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::conv2d"})
_MODE = "PythonDispatchMode"
_HIDDEN = ("ProfilerStep", "profiler::", "[memory]", _MODE)


@dataclass(frozen=True)
class OperatorCost:
    """One operator with inputs of one set of shapes, all its calls together.

    self_s: on the CPU, operators inside left out; total_s: with them. device_self_s, device_total_s: its kernels' time
    on the GPU, None without one. allocated_bytes: made less freed in it, operators inside left out.
    """

    name: str
    shapes: str
    calls: int
    self_s: float
    total_s: float
    device_self_s: float | None = None
    device_total_s: float | None = None
    allocated_bytes: int = 0

    @property
    def weight_s(self) -> float:
        """What operators are ranked by: time on the GPU where there is one, else on the CPU."""
        return self.self_s if self.device_self_s is None else self.device_self_s


@dataclass(frozen=True)
class Operators:
    """costs: slowest first. traced_s: how long the tracer ran; inside_s: of that, CPU time in operators; device_s: time
    of kernels on the GPU, None without one. flops: 2mnk, of matrix products and 2-d convolutions."""

    costs: tuple[OperatorCost, ...]
    traced_s: float = 0.0
    inside_s: float = 0.0
    device_s: float | None = None
    flops: int = 0

    def share(self, cost: OperatorCost) -> float:
        """Of the time of all operators."""
        whole = self.inside_s if self.device_s is None else self.device_s
        return cost.weight_s / whole if whole else 0.0


def start_tracer(*, cuda: bool, warm_up: Callable[[], object] | None = None) -> torch.profiler.profile:
    """A tracer that has been started; stop() it before it is read. Shapes and memory are recorded, stacks are not:
    they make operators many times slower.

    warm_up: called while the tracer is ready but does not record. Its start takes so long that threads fall asleep,
    and the first operator that runs would be charged with waking them.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    tracer = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1) if warm_up is not None else None,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        acc_events=True,
    )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else its library tells stderr of every start and stop
    with _quiet():
        tracer.start()
        if warm_up is not None:
            warm_up()
            tracer.step()
    return tracer


def stop_tracer(tracer: torch.profiler.profile) -> None:
    with _quiet():
        tracer.stop()


def operators_of(tracer: torch.profiler.profile, *, traced_s: float, cuda: bool) -> Operators:
    """Every operator that a stopped tracer has seen, slowest first."""
    with _quiet():
        averages = _once_each(tracer.events()).key_averages(group_by_input_shapes=True)
    costs = [
        OperatorCost(
            name=event.key.removeprefix("aten::"),
            shapes=_shapes(event.input_shapes),
            calls=event.count,
            self_s=event.self_cpu_time_total / 1e6,
            total_s=event.cpu_time_total / 1e6,
            device_self_s=event.self_device_time_total / 1e6 if cuda else None,
            device_total_s=event.device_time_total / 1e6 if cuda else None,
            allocated_bytes=event.self_device_memory_usage if cuda else event.self_cpu_memory_usage,
        )
        for event in averages
        if _is_operator(event)
    ]
    return Operators(
        costs=tuple(sorted(costs, key=lambda cost: -cost.weight_s)),
        traced_s=traced_s,
        inside_s=sum(cost.self_s for cost in costs),
        device_s=sum(cost.device_self_s or 0.0 for cost in costs) if cuda else None,
        flops=sum(event.flops or 0 for event in averages if event.key in _PRODUCTS),
    )


def _once_each(events: EventList) -> EventList:
    """Without the operators that a dispatch mode was handed and called again: those are there twice, nested."""
    outer = {id(event.cpu_parent) for event in events if event.name == _MODE and event.cpu_parent is not None}
    if not outer:
        return events
    kept = EventList([event for event in events if id(event) not in outer], use_device=events._use_device)
    kept._tree_built = events._tree_built
    return kept


def _is_operator(event: Any) -> bool:
    """Not a range that somebody named, nor a kernel (its time stands with the operator that launched it)."""
    named = bool(getattr(event, "is_user_annotation", False))
    on_cpu = event.device_type == DeviceType.CPU
    return on_cpu and not named and not event.key.startswith(_HIDDEN)


def _shapes(shapes: Any) -> str:
    """As [8, 64, 16] [64]; what is no tensor has none."""
    return " ".join(str(list(shape)) for shape in shapes or () if shape and all(isinstance(n, int) for n in shape))


@contextmanager
def _quiet() -> Iterator[None]:
    """The tracer warns of cycles, of devices that are not there, and of its own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
