"""Find where the time of forward and backward goes, layer by layer, and what bounds each layer.

Forward is watched module by module, as for inference. Each operator of forward gets a sequence number, and the autograd
node of its backward keeps it; so PyTorch's profiler tells how long the backward of each module took. Nothing is hooked
into the graph, so gradients stay as they are. Times of the profiled backward pass are scaled to a bare one.
"""

import bisect
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from whet.core.workload.training import Trainer, TrainingWorkload
from whet.measure.machine import Limits
from whet.profiling.bounds import Bound
from whet.profiling.model.diagnosis import attainable_s, layer_bound
from whet.profiling.model.layers import LayerCost, kind_of, modules_of, without_watching
from whet.profiling.model.spans import Spans, watched
from whet.profiling.model.work import FORMULAS, Work, WorkCounter, bytes_at, count_work
from whet.ui.figures import percent

OUTSIDE = "outside the layers"  # the loss, and what the loss function does around the model
_FAR_OFF = 0.15  # of a pass: a difference between the sum of its parts and the whole that is told
_NODE = "autograd::engine::evaluate_function: "


class TrainingLayer(BaseModel, frozen=True):
    """Describe one layer over one optimiser step. Layers inside it count for themselves only.

    Attributes:
        name: The qualified name of the module; `OUTSIDE` for the loss and what is around the model.
        kind: The layer's class, as "Linear".
        calls: How often it ran in forward.
        flops: Operations in forward; a multiply-add counts as two.
        num_bytes: Bytes read and written in forward.
        backward_bytes: Bytes read and written in backward, by each operator by itself.
        bound: What holds the layer back, forward and backward together.
        share_of_limit: The least time that the machine allows over the measured time; None where it does no work.
    """

    name: str
    kind: str
    calls: int
    forward_s: float
    backward_s: float
    flops: int = 0
    backward_flops: int = 0
    num_bytes: int = 0
    backward_bytes: int = 0
    bound: Bound
    share_of_limit: float | None = None

    @property
    def time_s(self) -> float:
        return self.forward_s + self.backward_s


class LayerProfile(BaseModel, frozen=True):
    """Hold where the time of forward and backward goes.

    Attributes:
        forward_s: Seconds of forward, without instruments.
        backward_s: Seconds of backward, without instruments.
        accumulation_s: Seconds of backward that add gradients to the parameters' own, which belong to no layer.
        layers: The layers, in the order of the model.
        notes: What the profile leaves out, in sentences.
    """

    forward_s: float
    backward_s: float
    accumulation_s: float = 0.0
    layers: tuple[TrainingLayer, ...] = ()
    notes: tuple[str, ...] = ()


class _Sequence:
    """Note which module was innermost from which sequence number of autograd on. It watches forward."""

    def __init__(self) -> None:
        self._numbers = [0]
        self._modules = [-1]
        self._stack = [-1]

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stack.append(index)
        self._mark()

    def leave(self, index: int, output: Any) -> None:
        self._stack.pop()
        self._mark()

    def module_of(self, number: int) -> int:
        """Return the module in whose forward an operator had this number; -1 for none."""
        return self._modules[bisect.bisect_right(self._numbers, number) - 1]

    def _mark(self) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._modules.append(self._stack[-1])


class _BackwardWork(WorkCounter):
    """Count the work of backward for the module that made each autograd node, and that of forward beside it."""

    def __init__(self, model: nn.Module, flops: FlopCounterMode, sequence: _Sequence) -> None:
        super().__init__(model, flops)
        self._sequence = sequence
        self.backward: dict[int, Work] = {}

    def enter(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._sequence.enter(index, args, kwargs)
        super().enter(index, args, kwargs)

    def leave(self, index: int, output: Any) -> None:
        super().leave(index, output)
        self._sequence.leave(index, output)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = torch._C._current_autograd_node()
        if node is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        before = self._flops.get_total_flops()
        output = func(*args, **(kwargs or {}))
        work = self.backward.setdefault(_module_of(node, self._sequence), Work())
        work.flops += self._flops.get_total_flops() - before
        if not getattr(func, "is_view", False):
            work.num_operators += 1
            work.operators[func._schema.name.partition("::")[2]] = None
            work.activation_bytes += bytes_at((args, kwargs, output))
        return output


def profile_training_layers(
    workload: TrainingWorkload, trainer: Trainer, limits: Limits, *, repeats: int = 3
) -> LayerProfile:
    """Profile forward and backward of a trainer's next steps, without an update.

    The gradients are set to none at the end. Buffers, as those of batch norms, go on as in a step. Passes of each kind
    are timed `repeats` times, and one more is made to count the work.
    """
    batches = trainer.next_batches()
    model = trainer.model

    def forward() -> Tensor:
        losses = [workload.loss(model, batch) / len(batches) for batch in batches]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    named = list(modules_of(model))
    modules = [model, *(module for _, module in named)]  # the first stands for what runs outside of all modules
    bare = [_bare(forward, model) for _ in range(repeats)]
    forward_s, backward_s = (statistics.median(times) for times in zip(*bare, strict=True))
    forward_times, calls = _forward_times(forward, modules, repeats)
    passes = [_backward_times(forward, modules, model) for _ in range(repeats)]
    backward_times = {
        index: statistics.median(found[0].get(index, 0.0) for found in passes)
        for index in {index for found in passes for index in found[0]}
    }
    accumulated = statistics.median(found[1] for found in passes)
    unknown = statistics.median(found[2] for found in passes)
    forward_work, backward_work = _work(forward, modules, model)
    model.zero_grad(set_to_none=True)
    scale = backward_s / (sum(backward_times.values()) + accumulated or 1.0)
    names = [(OUTSIDE, "loss"), *((name or type(model).__name__, kind_of(module)) for name, module in named)]
    dtype = str(next((p.dtype for p in model.parameters()), torch.float32)).removeprefix("torch.")
    weights = sum(p.nbytes for p in model.parameters())
    layers = []
    for index, (name, kind) in enumerate(names):
        if index not in calls:
            continue
        fore, back = forward_work.get(index, Work()), backward_work.get(index, Work())
        seconds = (forward_times.get(index, 0.0), scale * backward_times.get(index, 0.0))
        layers.append(_layer(name, kind, calls[index], seconds, (fore, back), weights, limits, dtype))
    notes = _notes(forward_s, sum(forward_times.values()), scale * unknown, scale * accumulated, backward_s)
    return LayerProfile(
        forward_s=forward_s,
        backward_s=backward_s,
        accumulation_s=scale * accumulated,
        layers=tuple(layers),
        notes=notes,
    )


def _layer(
    name: str,
    kind: str,
    calls: int,
    seconds: tuple[float, float],
    works: tuple[Work, Work],
    model_weight_bytes: int,
    limits: Limits,
    dtype: str,
) -> TrainingLayer:
    forward, backward = works
    weight_bytes = sum(forward.weights.values())
    cost = LayerCost(
        name=name,
        kind=kind,
        calls=calls,
        time_s=sum(seconds),
        flops=forward.flops + backward.flops,
        weight_bytes=weight_bytes,
        activation_bytes=forward.activation_bytes + backward.activation_bytes,
        num_operators=forward.num_operators + backward.num_operators,
        model_weight_bytes=model_weight_bytes,
    )
    least_s = attainable_s(cost, limits, dtype=dtype)
    return TrainingLayer(
        name=name,
        kind=kind,
        calls=calls,
        forward_s=seconds[0],
        backward_s=seconds[1],
        flops=forward.flops,
        backward_flops=backward.flops,
        num_bytes=weight_bytes + forward.activation_bytes,
        backward_bytes=backward.activation_bytes,
        bound=layer_bound(cost, limits, dtype=dtype),
        share_of_limit=min(1.0, least_s / cost.time_s) if cost.time_s and least_s else None,
    )


def _bare(forward: Callable[[], Tensor], model: nn.Module) -> tuple[float, float]:
    """Return the seconds of forward and of backward, without instruments."""
    model.zero_grad(set_to_none=True)
    began = time.perf_counter()
    loss = forward()
    middle = time.perf_counter()
    loss.backward()
    return middle - began, time.perf_counter() - middle


def _forward_times(
    forward: Callable[[], Tensor], modules: Sequence[nn.Module], repeats: int
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the seconds of each module in forward, modules inside it left out, and how often it ran."""
    samples = []
    for _ in range(repeats):
        spans = Spans("cpu")
        with watched(forward, modules, spans) as run:
            run()
        samples.append(without_watching(spans, "cpu"))
    times = {index: statistics.median(sample.get(index, 0.0) for sample in samples) for index in samples[0]}
    return times, spans.calls


def _backward_times(
    forward: Callable[[], Tensor], modules: Sequence[nn.Module], model: nn.Module
) -> tuple[dict[int, float], float, float]:
    """Return one backward pass's seconds by module, those of adding up gradients and those of nodes of no module."""
    model.zero_grad(set_to_none=True)
    sequence = _Sequence()
    with watched(forward, modules, sequence) as run:
        loss = run()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        loss.backward()
    seconds: dict[int, float] = {}
    accumulated = unknown = 0.0
    for event in recorded.events():
        if not event.name.startswith(_NODE):
            continue
        taken = event.cpu_time_total / 1e6
        if "AccumulateGrad" in event.name:
            accumulated += taken
            continue
        index = sequence.module_of(event.sequence_nr) if event.sequence_nr >= 0 else -1
        if index < 0:
            unknown += taken
        seconds[max(index, 0)] = seconds.get(max(index, 0), 0.0) + taken
    return seconds, accumulated, unknown


def _work(
    forward: Callable[[], Tensor], modules: Sequence[nn.Module], model: nn.Module
) -> tuple[dict[int, Work], dict[int, Work]]:
    """Count the work of one forward and one backward pass, by module."""
    model.zero_grad(set_to_none=True)
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as flops:
        counter = _BackwardWork(model, flops, _Sequence())
        with watched(forward, modules, counter) as run:
            count_work(counter, lambda: run().backward())
    return dict(counter.work), counter.backward


def _module_of(node: Any, sequence: _Sequence) -> int:
    """Return the module that made an autograd node; 0, which stands for none, for those that add up gradients."""
    number = node._sequence_nr()
    return 0 if "AccumulateGrad" in node.name() else max(0, sequence.module_of(number))


def _notes(
    forward_s: float, layers_s: float, unknown_s: float, accumulated_s: float, backward_s: float
) -> tuple[str, ...]:
    """Return what the profile leaves out, and where its parts do not add up."""
    notes = [
        "left out: the optimiser, the data and zeroing gradients, which are phases of the step; bytes of backward are "
        "counted operator by operator, so that what stays in a cache between two of them counts too"
    ]
    if accumulated_s >= 0.005 * backward_s:
        notes.append(f"{percent(accumulated_s / backward_s)} of backward adds up gradients, which is no layer's")
    if unknown_s >= 0.005 * backward_s:
        notes.append(f"{percent(unknown_s / backward_s)} of backward belongs to no layer that ran in forward")
    if forward_s and abs(layers_s / forward_s - 1) > _FAR_OFF:
        notes.append(
            f"the layers' forward times add up to {percent(layers_s / forward_s)} of the whole: the passes are so "
            "short, or the machine is so busy, that watching changes the times"
        )
    return tuple(notes)
