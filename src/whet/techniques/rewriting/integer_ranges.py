"""Find for which inputs the integers of a graph stay within 32 bits, for runtimes that compute all of them in 32.

Intervals go through the graph, from what the inputs may hold to every integer that is computed. The widest inputs for
which nothing overflows become conditions that are checked at each call.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from whet.errors import TargetError
from whet.techniques.rewriting.graph import operator, parameter, value

Interval = tuple[float, float]

_INT32: Interval = (-(2**31), 2**31 - 1)
_UNKNOWN: Interval = (-(2**24), 2**24)  # of places, counts, sizes and rounded floats: taken to be far from overflowing
_ANY_SIZE = 2**16  # stands for a free dimension
_MOST_ADDED = 2**24

_PASSING_ON = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "transpose", "permute", "t", "expand", "unsqueeze",
    "squeeze", "contiguous", "clone", "detach", "alias", "to", "_to_copy", "slice", "select", "index_select", "gather",
    "index", "roll", "flip", "repeat", "amax", "amin", "max", "min", "lift_fresh_copy", "expand_as", "view_as",
    "narrow", "type_as", "sort", "split", "chunk", "unbind", "movedim", "mT", "repeat_interleave", "cummax",
})  # fmt: skip
_JOINING = frozenset({"where", "cat", "stack", "maximum", "minimum", "masked_fill", "constant_pad_nd", "pad", "copy"})
_SUMS = frozenset({"sum", "cumsum"})


def conditions_for_int32(graph_module: fx.GraphModule, batches: Sequence[Sequence[Tensor]], runtime: str) -> list[str]:
    """Return conditions on 64-bit inputs, as guards read them, under which nothing overflows in 32 bits.

    Args:
        graph_module: The graph, with its weights as attributes.
        batches: Flat inputs that were seen.

    Raises:
        TargetError: An integer overflows already for inputs like those that were seen; the message names the operator.
    """
    places = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    wide = [i for i, node in enumerate(places) if (x := value(node)) is not None and x.dtype is torch.int64]
    seen = {i: _seen(batches, i) for i in wide}
    most = max((abs(end) for ends in seen.values() for end in ends), default=0)
    same = [dict.fromkeys(wide, (-(2**bits), 2**bits - 1)) for bits in range(31, -1, -1) if 2**bits > most]
    overflowing: fx.Node | None = None
    for limits in [*same, seen] if wide else [seen]:
        overflowing = _overflow(graph_module, {places[i]: ends for i, ends in limits.items()})
        if overflowing is None:
            return [
                f"L['{which}'][{i}] {sign} {end}"
                for i, ends in limits.items()
                for which, sign, end in zip(("least", "largest"), (">=", "<="), ends, strict=True)
            ]
    raise TargetError(
        f"{runtime} computes integers in 32 bits, and {getattr(overflowing, 'target', '')} overflows them for inputs "
        "like those given"
    )


def _seen(batches: Sequence[Sequence[Tensor]], i: int) -> tuple[int, int]:
    ends = [batch[i].aminmax() for batch in batches if batch[i].numel()]
    return min((int(low) for low, _ in ends), default=0), max((int(high) for _, high in ends), default=0)


def _overflow(graph_module: fx.GraphModule, limits: dict[fx.Node, Interval]) -> fx.Node | None:
    """Return the first node whose 64-bit integers may leave 32 bits; None where none does."""
    known: dict[fx.Node, Interval] = {}
    node: fx.Node
    for node in graph_module.graph.nodes:
        found = parameter(graph_module, node) if node.op == "get_attr" else value(node)
        if found is None or found.is_floating_point() or found.is_complex():
            continue
        interval = limits.get(node) or _interval(graph_module, node, found, known)
        if interval[0] < _INT32[0] or interval[1] > _INT32[1]:
            if found.dtype is torch.int64:
                return node
            interval = _INT32
        known[node] = interval
    return None


def _interval(graph_module: fx.GraphModule, node: fx.Node, found: Tensor, known: dict[fx.Node, Interval]) -> Interval:
    """Return what a node may hold, from what its arguments may hold."""
    if found.dtype is torch.bool:
        return 0, 1
    own = torch.iinfo(found.dtype)
    whole = (float(own.min), float(own.max)) if own.bits < 32 else _UNKNOWN
    constant = parameter(graph_module, node)
    if constant is not None:
        return (float(constant.min()), float(constant.max())) if constant.numel() else (0, 0)
    name = operator(node)
    given = [_of(arg, known) for arg in (*node.args, *node.kwargs.values())]
    first = given[0] if given else None
    if name in _PASSING_ON and first is not None:
        return first
    if name in _JOINING:
        inner = node.args[0] if name in ("cat", "stack") else node.args[1:] if name == "where" else node.args
        joined = [interval for arg in inner if (interval := _of(arg, known)) is not None]  # type: ignore[union-attr]
        return (min(low for low, _ in joined), max(high for _, high in joined)) if joined else whole
    if name in _SUMS and first is not None:
        num = _num_added(node)
        return min(first[0] * num, first[0]), max(first[1] * num, first[1])
    computed = _arithmetic(name, node, given)
    return whole if computed is None else computed


def _num_added(node: fx.Node) -> int:
    """Return how many values a sum adds at most."""
    source = value(node.args[0])
    if source is None:
        return _MOST_ADDED
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = range(source.dim()) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    sizes = [source.shape[dim] for dim in dims]  # type: ignore[union-attr,index]
    return min(_MOST_ADDED, math.prod(size if isinstance(size, int) else _ANY_SIZE for size in sizes))


def _of(arg: Any, known: dict[fx.Node, Interval]) -> Interval | None:
    if isinstance(arg, bool) or arg is None:
        return None
    if isinstance(arg, int):
        return arg, arg
    return known.get(arg) if isinstance(arg, fx.Node) else None


def _arithmetic(name: str, node: fx.Node, given: Sequence[Interval | None]) -> Interval | None:
    """Return the interval of a result of arithmetic; None for an operator that is none."""
    if not given or given[0] is None:
        return None
    a, b = given[0], given[1] if len(given) > 1 else None
    if name in ("neg", "bitwise_not"):
        return -a[1] - 1, -a[0]
    if name == "abs":
        return 0, max(map(abs, a))
    if name == "square" or (name == "pow" and isinstance(node.args[1], int)):
        exponent = 2 if name == "square" else int(node.args[1])  # type: ignore[arg-type]
        most = max(map(abs, a)) ** max(exponent, 1)
        return (0 if exponent % 2 == 0 else -most), most
    if name == "clamp":
        low, high = (*(end for end in node.args[1:]), None, None)[:2]
        return _clamped(a[0], low, high), _clamped(a[1], low, high)
    if b is None:
        return None
    if name == "rsub":
        a, b, name = b, a, "sub"
    if name in ("add", "sub"):
        alpha = float(node.kwargs.get("alpha", 1))  # type: ignore[arg-type]
        ends = sorted(end * alpha * (1 if name == "add" else -1) for end in b)
        return a[0] + ends[0], a[1] + ends[1]
    if name == "mul":
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    if name in ("floor_divide", "div"):
        most = max(map(abs, a))
        return -most, most
    if name in ("remainder", "fmod"):
        most = max(map(abs, b))
        return -most, most
    if name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__"):
        most = 2 ** math.ceil(math.log2(max(1, *map(abs, a), *map(abs, b)) + 1))
        return -most, most - 1
    return None


def _clamped(end: float, low: Any, high: Any) -> float:
    end = max(end, low) if isinstance(low, int | float) else end
    return min(end, high) if isinstance(high, int | float) else end
