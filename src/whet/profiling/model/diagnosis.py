"""Find what bounds a model, and how much faster it could be at most.

This is the roofline model (Williams, Waterman and Patterson, 2009, doi:10.1145/1498765.1498785) with two additions: the
cost of calling an operator, and caches, from which small models read their weights in every call.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.measure.machine import Limits
from whet.profiling.bounds import ROOFLINE, Bound
from whet.profiling.model.layers import LayerCost, Profile
from whet.ui.figures import percent

_FAR = 4.0  # a layer is far from the limit if it takes more than so many times the attainable time
_CALL = 20.0  # an operator with real tensors, memory and threads costs at most so many times the smallest operator


@dataclass(frozen=True)
class Diagnosis:
    """Describe what a model's time goes into.

    Attributes:
        bound: What most of the time is spent on.
        shares: The share of the time for each bound of ROOFLINE, 0 to 1.
        share_of_limit: Attainable time divided by measured time, at most 1.
    """

    bound: Bound
    shares: dict[Bound, float]
    share_of_limit: float
    sentence: str


def diagnose(profile: Profile, limits: Limits) -> Diagnosis:
    """Find what holds each layer back, and how far the layers are from the machine's limit."""
    groups: dict[Bound, list[LayerCost]] = {bound: [] for bound in ROOFLINE}
    for layer in profile.layers:
        groups[layer_bound(layer, limits, dtype=profile.dtype)].append(layer)
    times = {bound: sum(layer.time_s for layer in layers) for bound, layers in groups.items()}
    measured_s = sum(times.values())
    shares = {bound: time_s / measured_s if measured_s else 0.0 for bound, time_s in times.items()}
    least_s = least_time_s(profile, limits)
    ranked = sorted(ROOFLINE, key=lambda bound: -shares[bound])
    phrases = [
        _phrase(bound, shares[bound], groups[bound], limits, profile.dtype)
        for bound in ranked
        if shares[bound] >= 0.05 and groups[bound]
    ]
    return Diagnosis(
        bound=ranked[0],
        shares=shares,
        share_of_limit=min(1.0, least_s / profile.total_s) if profile.total_s else 1.0,
        sentence=_sentence(phrases),
    )


def layer_bound(layer: LayerCost, limits: Limits, *, dtype: str = "float32") -> Bound:
    """Return what holds a layer back: arithmetic, memory, or overhead.

    The bound is overhead if calling the operators costs more than their work, or if there is little work and the calls
    explain the layer's time.
    """
    compute_s = _compute_s(layer, limits, dtype)
    memory_s = _memory_s(layer, limits)
    overhead_s = layer.num_operators * limits.operator_s
    work_s = max(compute_s, memory_s)
    if work_s <= overhead_s or _FAR * work_s < layer.time_s <= _CALL * overhead_s:
        return Bound.OVERHEAD
    return Bound.COMPUTE if compute_s >= memory_s else Bound.BANDWIDTH


def least_time_s(
    profile: Profile,
    limits: Limits,
    *,
    dtype: str | None = None,
    weight_scale: float = 1.0,
    activation_scale: float = 1.0,
) -> float:
    """Return the seconds that the layers would take if each ran at the machine's limit.

    A `dtype` of None is that of the model's weights. The scales are as in `attainable_s`.
    """
    scales = {"weight_scale": weight_scale, "activation_scale": activation_scale}
    return sum(attainable_s(layer, limits, dtype=dtype or profile.dtype, **scales) for layer in profile.layers)


def attainable_s(
    layer: LayerCost,
    limits: Limits,
    *,
    dtype: str = "float32",
    weight_scale: float = 1.0,
    activation_scale: float = 1.0,
) -> float:
    """Return the least seconds that a layer could take here: the larger of operations / peak and bytes / bandwidth.

    The scales are the sizes of weights and activations in `dtype`, relative to now: 0.25 for int8 instead of float32.
    """
    return max(_compute_s(layer, limits, dtype), _memory_s(layer, limits, weight_scale, activation_scale))


def speedup_bound(
    profile: Profile,
    limits: Limits,
    *,
    dtype: str = "float32",
    kinds: frozenset[str] | None = None,
    weight_scale: float = 1.0,
    activation_scale: float = 1.0,
    removes_overhead: bool = False,
) -> float:
    """Return the best possible old time divided by new time, at least 1, if some layers run at the machine's limit.

    Layers of other kinds keep their time. Time outside all layers is noise, because the model itself is one of the
    layers, and is left out. The scales are as in `attainable_s`.

    Args:
        kinds: The kinds of layers that run at the limit; None means all.
        removes_overhead: Whether the cost of dispatching operators vanishes as well. Layers without matrix products may
            then be fused into their neighbours, so that their activations never reach memory.
    """
    before_s = after_s = 0.0
    for layer in profile.layers:
        before_s += layer.time_s
        if kinds is not None and layer.kind not in kinds:
            after_s += layer.time_s
            continue
        vanishes = removes_overhead and layer.flops == 0
        least_s = attainable_s(
            layer,
            limits,
            dtype=dtype,
            weight_scale=weight_scale,
            activation_scale=0.0 if vanishes else activation_scale,
        )
        if not removes_overhead:
            least_s = max(least_s, layer.num_operators * limits.operator_s)
        after_s += min(layer.time_s, least_s)
    return max(1.0, before_s / max(after_s, limits.operator_s))  # at least one operator is called


def _compute_s(layer: LayerCost, limits: Limits, dtype: str) -> float:
    # By default, PyTorch lets cuDNN round the inputs of a float32 convolution to tfloat32, but not those of a product.
    if dtype == "float32" and layer.kind.startswith("Conv") and "tfloat32" in limits.gemm:
        dtype = "tfloat32"
    return layer.flops / limits.peak(dtype)


def _memory_s(layer: LayerCost, limits: Limits, weight_scale: float = 1.0, activation_scale: float = 1.0) -> float:
    """Return the seconds that a layer needs to read and write its memory.

    Weights come from the cache that still holds them after the whole model has run. Activations have just been written,
    and come from the cache that holds them alone.
    """
    weight_bytes = layer.weight_bytes * weight_scale
    activation_bytes = layer.activation_bytes * activation_scale
    between_bytes = max(layer.weight_bytes, layer.model_weight_bytes) * weight_scale
    return weight_bytes / limits.bandwidth(between_bytes) + activation_bytes / limits.bandwidth(activation_bytes)


def _phrase(bound: Bound, share: float, layers: Sequence[LayerCost], limits: Limits, dtype: str) -> str:
    time_s = sum(layer.time_s for layer in layers)
    by_kind: Counter[str] = Counter()
    for layer in layers:
        by_kind[layer.kind] += layer.time_s  # type: ignore[assignment]  # a Counter sums floats as well
    kinds = [kind for kind, kind_s in by_kind.most_common(3) if kind_s >= 0.1 * time_s]
    where = f"{percent(share, decimals=0)} of the time is in {bound} layers ({', '.join(kinds)}), "
    if bound is Bound.OVERHEAD:
        return where + "where calling operators costs more than their work"
    if bound is Bound.COMPUTE:
        reached = sum(_compute_s(layer, limits, dtype) for layer in layers) / time_s
        return where + f"which run at {_reached(reached)} of the {dtype} limit"
    reached = sum(_memory_s(layer, limits) for layer in layers) / time_s
    return where + f"which read at {_reached(reached)} of the memory bandwidth"


def _reached(share: float) -> str:
    """Format a share of a limit in whole percent. Layers that ran reached some of it, so 0% is never shown."""
    return "below 1%" if share < 0.01 else percent(min(1.0, share), decimals=0)


def _sentence(phrases: list[str]) -> str:
    if not phrases:
        return "there is nothing to diagnose: no layer took any time"
    rest = [phrase.replace(" of the time is in ", " in ", 1) for phrase in phrases[1:]]
    return "; ".join([phrases[0], *rest]) + "."
