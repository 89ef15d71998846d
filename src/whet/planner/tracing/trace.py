"""Trace the memory of one rank of a plan: run its steps with tensors without numbers, and count what lives."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim import AdamW

from whet.errors import OptionError
from whet.parallel.division import inner_optimizer
from whet.parallel.plan import ParallelPlan
from whet.planner.layout import Layout, Work
from whet.planner.memory import predict_memory
from whet.planner.memory_trace import MemoryTrace, TracedPart
from whet.planner.model_shape import ModelShape
from whet.planner.optimizers import bytes_of
from whet.planner.prediction import MemoryParts
from whet.planner.tracing.live_bytes import LiveBytes, rounded
from whet.planner.tracing.one_rank import OneRank, check_alone, one_rank, without_numbers
from whet.planner.tracing.step import Peak, Peaks, RankStep, locals_of, mark_layers, peaks_of
from whet.planner.tracing.traced_decoder import is_whets, model_of, normalise_as_gpus, wrap_layers
from whet.planner.whet_train import plan_keys

Device = Literal["cuda", "cpu"]
# Sizes are rounded up to multiples of these bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
ALLOCATED: dict[Device, int] = {"cuda": 512, "cpu": 1}
_PARTS = {
    "parameters": ("parameters", "copies"),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("setup", "forward", "backward", "update"),
    "buffers": ("message",),
}
"""The kinds of LiveBytes that each part of memory is made of."""


@dataclass(frozen=True)
class Traced:
    """Say what is traced of a plan: the layout, with the keys of [parallel], and what it does otherwise."""

    layout: Layout
    keys: dict[str, Any]
    autocasts: bool
    differs: tuple[str, ...]


def trace_memory(
    shape: ModelShape, layout: Layout, work: Work, fragmentation: float, *, device: Device = "cuda"
) -> MemoryTrace:
    """Return the memory of the rank that needs most, traced where that is possible, beside what formulas say.

    Args:
        fragmentation: What the allocator holds beside what is used, as a share of activations and buffers. A trace
            does not see it.
        device: Whose kernels make tensors, and whose allocator rounds their sizes.

    Raises:
        OptionError: This process trains with others.
    """
    check_alone()
    began = time.perf_counter()
    of_formulas = partial(_of_formulas, shape, layout, work, fragmentation)
    if why_not := _why_not(shape, layout):
        return of_formulas(why_not)
    traced = as_traced(shape, layout)
    try:
        peak = _peak(shape, traced, work, device)
    except OptionError as error:
        return of_formulas(str(error))
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        return of_formulas(f"torch reads numbers for this layout ({error}), and a trace has none")
    found = _parts_of(peak.by_kind)
    found["fragmentation"] = fragmentation * (found["activations"] + found["buffers"])
    differs = [*traced.differs, "fragmentation: the formulas' share of what was traced of activations and buffers"]
    if not is_whets(shape):
        differs.insert(0, "traced as a plain decoder of the model's sizes, which whet has not")
    if layout.optimizer != "adamw":
        del found["optimizer"]
        differs.append(
            f"the state is the formula's: AdamW ran in the place of {layout.optimizer}, and what else that one makes "
            "in an update is left out"
        )
    return MemoryTrace(
        layout=traced.layout,
        parts=_beside(_said(shape, traced.layout, work, fragmentation), found),
        differs=tuple(differs),
        phase=peak.phase,
        ranks=layout.chips,
        num_layers=(fewer_layers(shape) or (shape.num_layers,))[-1],
        seconds=time.perf_counter() - began,
    )


def _parts_of(by_kind: Counter[str]) -> dict[str, float]:
    return {part: float(sum(by_kind[kind] for kind in kinds)) for part, kinds in _PARTS.items()}


def _beside(said: MemoryParts, traced: Mapping[str, float]) -> tuple[TracedPart, ...]:
    return tuple(TracedPart(name=name, formula=size, traced=traced.get(name)) for name, size in said.by_name.items())


def _said(shape: ModelShape, layout: Layout, work: Work, fragmentation: float) -> MemoryParts:
    return predict_memory(shape, layout, work, layout.num_micro_batches(work), fragmentation)


def _of_formulas(shape: ModelShape, layout: Layout, work: Work, fragmentation: float, why_not: str) -> MemoryTrace:
    parts = _beside(_said(shape, layout, work, fragmentation), {})
    return MemoryTrace(layout=layout, parts=parts, why_not=why_not)


def _why_not(shape: ModelShape, layout: Layout) -> str:
    """Return why a model or a layout cannot be traced; "" where it can."""
    is_divided = layout.tensor * layout.pipeline > 1
    reasons = (
        (is_divided and not is_whets(shape), "whet divides the matrices and layers of decoders like Llama's alone"),
        (layout.pipeline > 1, "torch's schedules of pipelines read numbers as they start, and a trace has none"),
        (layout.expert > 1, "whet shares no experts among processes"),
        (shape.num_extra_layers > 0, "the decoder that is traced predicts one token, and this predicts later ones too"),
        (layout.offload, "the trace sees one kind of memory, and the plan keeps the state in the host's"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def as_traced(shape: ModelShape, layout: Layout) -> Traced:
    """Return the layout that stands for a plan in a trace: what whet train would run, without what needs a GPU."""
    differs, changes = list[str](), dict[str, Any]()
    for name, value, why in (
        ("compiled", False, "without torch.compile, whose kernels keep less"),
        ("fused_loss", False, "with a loss that keeps its logits"),
        ("fused_attention", True, "with fused attention"),
    ):
        if getattr(layout, name) != value:
            changes[name] = value
            differs.append(f"traced {why}")
    if layout.precision == "fp8":
        changes["precision"] = "bfloat16"
        differs.append("traced in bfloat16, of which fp8 keeps some in half the bytes")
    if not layout.software.startswith("torch"):
        changes["software"] = "torch-2024"
        differs.append(f"traced as PyTorch, and the plan is {layout.software}'s")
    if layout.context > 1:
        differs.append(f"traced with 1/{layout.context} of each row; keys and values on their way are left out")
    layout = layout.model_copy(update=changes)
    whole = layout.model_copy(update={"shard": layout.shard * layout.context, "context": 1})
    keys, recipe, _ = plan_keys(whole)
    keys.pop("checkpointing", None)  # layers are wrapped before they are divided
    if (stage := keys["zero_stage"]) != layout.zero_stage:
        if whole.data > 1:
            instead = f"in the place of {layout.zero_stage}, as whet train runs divided matrices"
            differs.append(f"traced with ZeRO {stage} {instead}")
        layout = layout.model_copy(update={"zero_stage": stage, "shard": layout.data, "replicate": 1})
    autocasts = "autocast" in recipe
    own = bytes_of(shape, "float32", layout.optimizer).model_copy(update={"parameter": 6 if autocasts else 4})
    if layout.bytes != own:
        given, size = layout.bytes, own
        differs.append(
            f"traced with {size.parameter:g}, {size.gradient:g} and {size.state:g} bytes of a parameter, its gradient "
            f"and its state, as whet train has them; the plan says {given.parameter:g}, {given.gradient:g} and "
            f"{given.state:g}"
        )
    return Traced(layout.model_copy(update={"bytes": own}), keys, autocasts, tuple(differs))


def fewer_layers(shape: ModelShape) -> tuple[int, int] | None:
    """Return the two smaller numbers of layers with which a model is traced; None where all are.

    All layers but the first ones are alike, so that each segment of a step grows by the same bytes with each of them.
    """
    fewest = _dense_layers(shape) + 4
    return None if shape.num_layers <= fewest + 4 else (fewest, fewest + 2)


def _dense_layers(shape: ModelShape) -> int:
    return 0 if shape.experts is None else shape.experts.num_dense_layers


def _peak(shape: ModelShape, traced: Traced, work: Work, device: Device) -> Peak:
    """Return what the first rank holds at its peak.

    Raises:
        OptionError: whet cannot divide the model so.
    """

    def peaks(layers: int) -> Peaks:
        return _peaks_of_all(shape.model_copy(update={"num_layers": layers}), traced, work, device)

    number, layers = shape.num_layers, fewer_layers(shape)
    if layers is not None:
        few, many = layers
        found = _grown(peaks(few), peaks(many), few, many, number)
        if traced.layout.zero_stage == 1 and traced.layout.data > 1:
            state = _whole_tensors_state(shape, traced, ALLOCATED[device])
            for one in found.values():
                one.by_kind["optimizer"] = state
    else:
        found = peaks(number)
    return max(found.values(), key=lambda one: one.total)


def _whole_tensors_state(shape: ModelShape, traced: Traced, rounded_to: int) -> int:
    """Return the bytes of AdamW's state on the first rank where each rank updates whole tensors, as whet's ZeRO 1 does.

    Which ones these are depends on all layers.
    """
    with one_rank(ParallelPlan.model_validate(traced.keys), traced.layout.chips) as division, without_numbers():
        optimizer = inner_optimizer(division.optimizer(_fused_adamw)(model_of(shape).parameters()))
        held = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(2 * rounded(4 * p.numel(), rounded_to) + rounded(4, rounded_to) for p in held)


def _grown(fewer: Peaks, more: Peaks, few: int, many: int, number: int) -> Peaks:
    """Return the peaks for a larger number of what each segment grows with evenly, from those for two smaller ones."""
    times = (number - many) / (many - few)
    found = {}
    for segment, peak in more.items():
        if (before := fewer.get(segment)) is not None:
            kinds = {*peak.by_kind, *before.by_kind}
            sizes = {kind: peak.by_kind[kind] + times * (peak.by_kind[kind] - before.by_kind[kind]) for kind in kinds}
            found[segment] = Peak(Counter({kind: round(size) for kind, size in sizes.items()}), peak.phase)
    return found


def _peaks_of_all(shape: ModelShape, traced: Traced, work: Work, device: Device) -> Peaks:
    """Return what the first rank holds at its peaks, with all layers and micro-batches traced.

    Raises:
        OptionError: whet cannot divide the model so.
    """
    layout = traced.layout
    with one_rank(ParallelPlan.model_validate(traced.keys), layout.chips) as division, without_numbers():
        length, num = work.sequence_length // layout.context, layout.num_micro_batches(work)
        return _peaks_of_rank(
            shape, layout, division, autocasts=traced.autocasts, length=length, num=num, device=device
        )


def _peaks_of_rank(
    shape: ModelShape, layout: Layout, division: OneRank, *, autocasts: bool, length: int, num: int, device: Device
) -> Peaks:
    """Return what a rank holds at its peaks, given how it divides its model.

    Args:
        length: The tokens of a row.
        num: The micro-batches of a step.
    """
    model = model_of(shape)
    if device == "cuda":
        normalise_as_gpus(model)
    wrap_layers(model, layout.recompute)
    division.share(model)
    optimizer = division.optimizer(_fused_adamw)(model.parameters())
    with LiveBytes(rounded_to=ALLOCATED[device]) as live:
        live.add(locals_of(model.parameters()), locals_of(model.buffers()))
        rows = torch.zeros(layout.micro_batch_size, length, dtype=torch.int64)
        parts = [rows] * min(num, 2)  # a third one holds what the second holds
        step = RankStep(division, model, optimizer, parts, autocasts=autocasts, live=live)
        mark_layers(list(model.layers), _dense_layers(shape) + 2, live)
        return peaks_of(step, model, optimizer, live)


def _fused_adamw(parameters: Any) -> AdamW:
    """Return the optimiser that is traced. One that is not fused makes more tensors for a moment."""
    return AdamW(parameters, fused=True)
