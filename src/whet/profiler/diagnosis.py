"""What bounds a model, and how much faster it could be at the very most.

The roofline model (Williams, Waterman and Patterson, 2009, doi:10.1145/1498765.1498785), with two additions: what it
costs to call an operator, and caches, from which small models read their weights at every call.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.bounds import ROOFLINE, Bound
from whet.figures import percent
from whet.machine import Limits
from whet.profiler.layers import LayerCost, Profile

_FAR = 4.0  # times what is attainable
_CALL = 20.0  # times the smallest operator: what one with real tensors costs to call, memory and threads included


@dataclass(frozen=True)
class Diagnosis:
    """What a model's time goes into.

    bound: what most of it is spent on. shares: of the time, for each of ROOFLINE. share_of_limit: attainable over
    measured time.
    """

    bound: Bound
    shares: dict[Bound, float]
    share_of_limit: float
    sentence: str


def diagnose(profile: Profile, limits: Limits) -> Diagnosis:
    """Say which layers are held back by what, and how far they are from the limit."""
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
    """What holds a layer back: arithmetic, memory, or, where there is too little of either to do, the calls themselves.

    Overhead: calling the operators costs more than their work, or little work takes a time that their calls explain.
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
    """What the layers would take if each ran at the machine's limit, in `dtype` or else in that of its weights.

    The scales are those of `attainable_s`.
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
    """The least time a layer could take here: the larger of operations / peak and bytes / bandwidth.

    The scales are what its weights and activations weigh in a smaller dtype: 0.25 for int8 in place of float32.
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
    """The best speedup there could be if the layers of `kinds` (all, if None) ran at the machine's limit in `dtype`.

    removes_overhead: the cost of dispatching each operator goes as well, and layers without matrix products may be
    fused into their neighbours, so that their activations never reach memory. Layers of other kinds keep their time.
    Times that are in no layer are noise, since the model as a whole is one of them, and are left out.
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
    return max(1.0, before_s / max(after_s, limits.operator_s))  # one operator, at the very least, is called


def _compute_s(layer: LayerCost, limits: Limits, dtype: str) -> float:
    # PyTorch lets cuDNN round a float32 convolution's inputs to tfloat32 unless told otherwise, but not a product's.
    if dtype == "float32" and layer.kind.startswith("Conv") and "tfloat32" in limits.gemm:
        dtype = "tfloat32"
    return layer.flops / limits.peak(dtype)


def _memory_s(layer: LayerCost, limits: Limits, weight_scale: float = 1.0, activation_scale: float = 1.0) -> float:
    """Weights come from whichever cache still holds them when the whole model has been gone through; activations have
    just been written, and come from the cache that holds them alone."""
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
        return where + f"which run at {percent(min(1.0, reached), decimals=0)} of the {dtype} limit"
    reached = sum(_memory_s(layer, limits) for layer in layers) / time_s
    return where + f"which read at {percent(min(1.0, reached), decimals=0)} of what memory gives"


def _sentence(phrases: list[str]) -> str:
    """The first phrase whole, the others shortened."""
    if not phrases:
        return "nothing that takes time was seen"
    rest = [phrase.replace(" of the time is in ", " in ", 1) for phrase in phrases[1:]]
    return "; ".join([phrases[0], *rest]) + "."
