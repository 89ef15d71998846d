"""Measure the cost of each layer over one call of the model: time, operations, bytes and operators."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whet.core.signature import Batch, split, tensors_of
from whet.core.workload import ExaminedWorkload
from whet.measure.device import device_type_of
from whet.profiling.model.spans import Spans, watched, watching_cost_s
from whet.profiling.model.work import FORMULAS, Work, WorkCounter, count_work

T = TypeVar("T")

_LEAST_S = 0.3  # quick models are called again until so much time has passed, at most _MOST_REPEATS times
_MOST_REPEATS = 50
_MOST_SIZES = 8  # how many sizes of batches are chosen for counting the work, besides the first batch's
_CONTAINERS = frozenset({"Module", "Sequential", "ModuleList", "ModuleDict"})


@dataclass(frozen=True)
class LayerCost:
    """Describe one module over one call of the model. Work in modules inside it counts for those modules only.

    Attributes:
        name: The qualified name of the module; "" for the model itself.
        kind: The class in torch.nn that the module is or derives from, as "Linear"; otherwise the module's own class.
        flops: Operations as PyTorch's FlopCounterMode counts them: 2mnk for a matrix product.
        weight_bytes: Bytes of the parameters and buffers that were read; each counts once.
        activation_bytes: Bytes of the inputs read and of the outputs written.
        num_operators: Calls of aten operators that are no views. Each costs dispatch.
        operators: The names of these operators, as "addmm" or "_softmax".
        model_weight_bytes: Bytes of the weights that the whole model reads in a call. So much passes through the caches
            before this layer's weights are read again.
    """

    name: str
    kind: str
    calls: int
    time_s: float
    flops: int
    weight_bytes: int
    activation_bytes: int
    num_operators: int
    operators: tuple[str, ...] = ()
    model_weight_bytes: int = 0


@dataclass(frozen=True)
class Profile:
    """Hold the cost of each layer that ran in one call of the original model.

    Attributes:
        total_s: The time of a call, measured without instruments.
        dtype: The dtype of most of the weights.
    """

    total_s: float
    layers: tuple[LayerCost, ...] = field(default_factory=tuple)
    dtype: str = "float32"


def profile_layers(examined: ExaminedWorkload, *, repeats: int = 5) -> Profile:
    """Profile the model on the workload's first batch, in evaluation mode, without gradients.

    Times are the mean of the middle half of the calls, minus what watching them costs. If PyTorch runs several modules
    as one fused operator, their work is attributed to the module that ran this operator. `repeats` is the least number
    of timed calls; quick models are called more often.
    """
    return _profiles(examined, [examined.workload.inputs[0]], repeats)[0]


def profile_sizes(examined: ExaminedWorkload, *, repeats: int = 5) -> list[tuple[Profile, int]]:
    """Profile the first batch, and count the work of batches of other sizes without timing them.

    If the workload has many sizes, at most nine are profiled. Each other batch counts as one of the nearest size.
    `repeats` is as in `profile_layers`.

    Returns:
        The profile of each size, the first batch's first, and how many batches it stands for.
    """
    sizes = [tuple(tensor.shape for tensor in batch) for batch in examined.flat_inputs]
    ranked = sorted(set(sizes), key=_num_elements)
    last = len(ranked) - 1
    chosen = list(dict.fromkeys([sizes[0], *(ranked[k * last // (_MOST_SIZES - 1)] for k in range(_MOST_SIZES))]))
    counts = Counter(min(chosen, key=lambda c: abs(_num_elements(c) - _num_elements(size))) for size in sizes)
    profiles = _profiles(examined, [examined.workload.inputs[sizes.index(size)] for size in chosen], repeats)
    return [(profile, counts[size]) for profile, size in zip(profiles, chosen, strict=True)]


def _num_elements(sizes: Sequence[torch.Size]) -> int:
    return sum(map(math.prod, sizes))


def _profiles(examined: ExaminedWorkload, batches: Sequence[Batch], repeats: int) -> list[Profile]:
    """Profile each batch. Only the first is timed; the times of the others are 0."""
    model = examined.workload.model
    named = list(modules_of(model))
    calls = [call_of(model, batch) for batch in batches]
    with torch.no_grad():
        total_s, spans, seconds = _time(
            calls[0],
            [module for _, module in named],
            device_type_of(model.parameters(), model.buffers(), tensors_of(batches[0])),
            repeats,
        )
        first = Profile(total_s, _count(model, calls[0], named, spans, seconds), _dtype(model))
        return [first, *(Profile(0.0, _count(model, call, named, spans, {}), first.dtype) for call in calls[1:])]


def call_of(model: nn.Module, batch: Batch) -> Callable[[], Any]:
    args, kwargs = split(batch)
    return lambda: model(*args, **kwargs)


def _count(
    model: nn.Module,
    run: Callable[[], Any],
    named: Sequence[tuple[str, nn.Module]],
    spans: Spans,
    times: dict[int, float],
) -> tuple[LayerCost, ...]:
    """Count the work of one call, and attribute it to the modules that were timed."""
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as flops:
        counter = WorkCounter(model, flops)
        with watched(run, [module for _, module in named], counter) as watched_run:
            count_work(counter, watched_run)
    work = fold(counter, spans)
    model_weight_bytes = sum(sum(w.weights.values()) for w in work.values())
    return tuple(
        _layer(name, module, spans.calls[i], times.get(i, 0.0), work.get(i, Work()), model_weight_bytes)
        for i, (name, module) in enumerate(named)
        if i in spans.calls
    )


def _layer(name: str, module: nn.Module, calls: int, time_s: float, work: Work, model_weight_bytes: int) -> LayerCost:
    return LayerCost(
        name=name,
        kind=kind_of(module),
        calls=calls,
        time_s=time_s,
        flops=work.flops,
        weight_bytes=sum(work.weights.values()),
        activation_bytes=work.activation_bytes,
        num_operators=work.num_operators,
        operators=tuple(work.operators),
        model_weight_bytes=model_weight_bytes,
    )


def kind_of(module: nn.Module) -> str:
    """Return the name of the torch.nn class (no container) that a module is or derives from, or of its own class."""
    for cls in type(module).__mro__:
        name: str = cls.__name__
        if name not in _CONTAINERS and getattr(nn, name, None) is cls:
            return name
    return str(type(module).__name__)


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the model and each module in it whose `forward` can be watched, with their names, each once.

    Modules inside a compiled or scripted module are left out: it counts as a whole.
    """
    opaque: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if opaque and name.startswith(opaque):
            continue
        compiled = type(module).__name__ == "OptimizedModule"  # isinstance would import torch._dynamo: a second
        if compiled or isinstance(module, torch.jit.ScriptModule):
            opaque += (f"{name}." if name else "",)
            if name and not compiled:
                continue  # a scripted module's forward cannot be replaced, so its work is attributed to its caller
        yield name, module


def _time(
    run: Callable[[], Any], modules: Sequence[nn.Module], device: str, repeats: int
) -> tuple[float, Spans, dict[int, float]]:
    """Time bare calls and watched calls in turn.

    Returns:
        The typical seconds of a bare call, the last watched call's spans, and the typical own seconds of each module.
    """
    run()
    totals: list[float] = []
    samples: list[dict[int, float]] = []
    began = time.perf_counter()
    while len(totals) < repeats or (time.perf_counter() - began < _LEAST_S and len(totals) < _MOST_REPEATS):
        totals.append(_bare_s(run, device))
        spans = Spans(device)
        with watched(run, modules, spans) as watched_run:
            watched_run()
        samples.append(without_watching(spans, device))
    return _middle_mean(totals), spans, _typical(samples)


def _typical(samples: Sequence[dict[int, float]]) -> dict[int, float]:
    """Average the seconds of each module over the middle half of the calls, ranked by their whole time.

    Unlike one median for each module, these averages add up to the time of a call: page faults hit one layer in one
    call, and another layer in the next.
    """
    middle = _middle(sorted(samples, key=lambda sample: sum(sample.values())))
    return {index: statistics.fmean(sample[index] for sample in middle) for index in middle[0]}


def _middle_mean(values: Sequence[float]) -> float:
    return statistics.fmean(_middle(sorted(values)))


def _middle(ranked: Sequence[T]) -> Sequence[T]:
    """Return the values without the lowest and the highest quarter."""
    quarter = len(ranked) // 4
    return ranked[quarter : len(ranked) - quarter]


def _bare_s(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e9


def without_watching(spans: Spans, device: str) -> dict[int, float]:
    """Return the seconds of each module, by its index, without what it cost to watch them."""
    own_s, around_s = watching_cost_s(device)
    inner_calls = Counter[int]()
    for index, calls in spans.calls.items():
        inner_calls[spans.parents[index]] += calls
    return {
        index: max(0.0, seconds - own_s * spans.calls[index] - around_s * inner_calls[index])
        for index, seconds in spans.exclusive_s().items()
    }


def fold(counter: WorkCounter, spans: Spans) -> dict[int, Work]:
    """Attribute the work to the modules that were timed.

    A module that ran only because fused paths were off has no time: its work is attributed to its caller.
    """
    folded: dict[int, Work] = {}
    for index, work in counter.work.items():
        while index not in spans.calls and index in counter.parents:
            index = counter.parents[index]
        folded.setdefault(index, Work()).add(work)
    return folded


def _dtype(model: nn.Module) -> str:
    """Return the dtype of most of the floating-point weights, as "float32"."""
    sizes = Counter[torch.dtype]()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    most = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    return str(most).removeprefix("torch.")
