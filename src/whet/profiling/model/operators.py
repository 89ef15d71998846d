"""Find the slowest operators of a run with their shapes, using torch.profiler."""

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
    """Describe one operator with inputs of one set of shapes, over all its calls.

    Attributes:
        name: The operator's name without "aten::".
        shapes: The shapes of its inputs, as "[8, 64, 16] [64]".
        self_s: CPU time, operators inside left out.
        total_s: CPU time, operators inside included.
        device_self_s: GPU time of its kernels, operators inside left out; None without a GPU.
        device_total_s: GPU time of its kernels, operators inside included; None without a GPU.
        allocated_bytes: Bytes allocated minus bytes freed in it, operators inside left out.
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
        """Return the time by which operators are ranked: their own time on the GPU, or else on the CPU."""
        return self.self_s if self.device_self_s is None else self.device_self_s


@dataclass(frozen=True)
class Operators:
    """Hold the operators of a run.

    Attributes:
        costs: The operators, slowest first.
        traced_s: How long the tracer ran.
        inside_s: CPU time in operators.
        device_s: GPU time of kernels; None without a GPU.
        flops: Operations of matrix products and 2-d convolutions; 2mnk for a product.
    """

    costs: tuple[OperatorCost, ...]
    traced_s: float = 0.0
    inside_s: float = 0.0
    device_s: float | None = None
    flops: int = 0

    def share(self, cost: OperatorCost) -> float:
        """Return an operator's share of the time of all operators, 0 to 1."""
        whole = self.inside_s if self.device_s is None else self.device_s
        return cost.weight_s / whole if whole else 0.0


def start_tracer(
    *, cuda: bool, warm_up: Callable[[], object] | None = None, details: bool = True
) -> torch.profiler.profile:
    """Start a tracer that records shapes and memory, unless `details` is false. Stop it before it is read.

    Stacks are not recorded, because they make operators many times slower. `warm_up` is called while the tracer is
    ready but does not record yet. Starting the tracer takes so long that threads fall asleep, and the first operator
    would be charged with the time to wake them.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    tracer = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1) if warm_up is not None else None,
        record_shapes=details,
        profile_memory=details,
        with_flops=details,
        acc_events=True,
    )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise Kineto writes to stderr at every start and stop
    with _quiet():
        tracer.start()
        if warm_up is not None:
            warm_up()
            tracer.step()
    return tracer


def stop_tracer(tracer: torch.profiler.profile) -> None:
    """Stop a tracer without the warnings that it prints."""
    with _quiet():
        tracer.stop()


def operators_of(tracer: torch.profiler.profile, *, traced_s: float, cuda: bool) -> Operators:
    """Return every operator that a stopped tracer has seen, slowest first."""
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
    """Drop duplicates: an operator that a dispatch mode handles and calls again is recorded twice, nested."""
    outer = {id(event.cpu_parent) for event in events if event.name == _MODE and event.cpu_parent is not None}
    if not outer:
        return events
    kept = EventList([event for event in events if id(event) not in outer], use_device=events._use_device)
    kept._tree_built = events._tree_built
    return kept


def _is_operator(event: Any) -> bool:
    """Return whether an event is an operator: no named range, and no kernel, whose time counts for its operator."""
    named = bool(getattr(event, "is_user_annotation", False))
    on_cpu = event.device_type == DeviceType.CPU
    return on_cpu and not named and not event.key.startswith(_HIDDEN)


def _shapes(shapes: Any) -> str:
    """Format shapes as "[8, 64, 16] [64]". Inputs that are no tensors are left out."""
    return " ".join(str(list(shape)) for shape in shapes or () if shape and all(isinstance(n, int) for n in shape))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the tracer's warnings of cycles, of missing devices and of its own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
