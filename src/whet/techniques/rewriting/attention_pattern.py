"""Finds attention written out by hand in a graph of aten operators, and puts one fused operator in its place.

    matmul(query, keyᵀ) -> scale, mask, in any order that attention knows -> softmax -> matmul(·, value)

The products may be matmul, bmm, baddbmm or einsum; the mask may be added or filled in; heads may be folded into the
batch (three dimensions) and unfolded for the mask.

Shape suffixes: B batch, N heads, T queries, S keys, H head width, BN batch times heads.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from whet.techniques.rewriting.attention_mask import Step, combined_mask
from whet.techniques.rewriting.graph import operator, parameter, rebuild, value

_aten = torch.ops.aten

# A fill value at or below this leaves nothing of a score after softmax.
_MASKED = -1e4


@dataclass(frozen=True)
class Operand:
    """Describe a factor of a product, and the order of its dimensions as (batch dimensions, rows, columns)."""

    node: fx.Node
    order: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """Describe a softmax's scores, with the steps from the product on, in order, and nodes that nothing else uses."""

    query: Operand
    key: Operand
    steps: tuple[Step, ...]
    nodes: tuple[fx.Node, ...]

    def then(self, node: fx.Node, *steps: Step) -> "Scores":
        return replace(self, steps=self.steps + steps, nodes=(*self.nodes, node))


@dataclass(frozen=True)
class Attention:
    """Describe a match. `output` is the second product, and its order turns (batch, rows, columns) into its own."""

    scores: Scores
    value: Operand
    output: Operand


def find_attention(graph_module: fx.GraphModule) -> list[Attention]:
    """Return every softmax attention that is written as separate operators."""
    softmaxes = [node for node in graph_module.graph.nodes if operator(node) == "softmax"]
    return [found for node in softmaxes if (found := _match(node)) is not None]


def count_fused(graph_module: fx.GraphModule) -> int:
    return sum(operator(node) == "scaled_dot_product_attention" for node in graph_module.graph.nodes)


def fuse(graph_module: fx.GraphModule, found: list[Attention]) -> fx.GraphModule:
    """Replace each match by one fused operator, and return the new graph."""
    for attention in found:
        _replace(graph_module.graph, attention)
    return rebuild(graph_module)


def _match(softmax: fx.Node) -> Attention | None:
    found = value(softmax)
    if found is None or found.dim() not in (3, 4) or softmax.args[1] not in (-1, found.dim() - 1):
        return None
    scores = _scores(softmax.args[0])
    node, nodes = softmax, [softmax]
    while scores is not None and (user := _only_user(node)) is not None:
        nodes.append(user)
        if operator(user) in ("to", "_to_copy", "clone", "contiguous") and _is_float(user):
            node = user
            continue
        product = _value_product(user, node)
        if product is None:
            return None
        attention = Attention(replace(scores, nodes=scores.nodes + tuple(nodes)), *product)
        return attention if _is_consistent(attention, found.dim()) else None
    return None


def _is_consistent(attention: Attention, num_dims: int) -> bool:
    """Return whether the fused operator can do the steps: no scale after a mask, heads folded back."""
    scores = attention.scores
    kinds = [step.kind for step in scores.steps]
    masks = [i for i, kind in enumerate(kinds) if kind in ("add", "fill", "keep")]
    if "split" in kinds or "merge" in kinds:
        if [k for k in kinds if k in ("split", "merge")] != ["split", "merge"]:
            return False
        # a mask made for folded heads would have to be unfolded: not worth the trouble
        if any(not kinds.index("split") < i < kinds.index("merge") for i in masks):
            return False
    for i, step in enumerate(scores.steps):
        shape = value(step.operand) if step.kind == "scale" else None
        is_late = step.kind == "scale" and bool(masks) and i > masks[0]
        if is_late or (shape is not None and shape.dim() > 0 and num_dims == 3):
            return False
    factors = [value(operand.node) for operand in (scores.query, scores.key, attention.value)]
    dtypes = {factor.dtype for factor in factors if factor is not None}
    return len(dtypes) == 1 and len(attention.value.order) == num_dims


def _scores(node: Any) -> Scores | None:
    """Return the product of query and key with the steps to this node; None unless each node has a single user."""
    if _only_user(node) is None:
        return None
    name, args = operator(node), list(node.args)
    if name in ("matmul", "bmm", "baddbmm", "einsum"):
        return _key_product(node)
    if name in ("to", "_to_copy", "clone", "contiguous") and _is_float(node):
        inner = _scores(args[0])
        return inner.then(node) if inner else None
    if name in ("reshape", "view", "_unsafe_view"):
        return _reshaped(node)
    if name in ("mul", "div") and len(node.kwargs) == 0:
        for here, other in ((0, 1), (1, 0))[: 2 if name == "mul" else 1]:
            if _is_scale(args[other]) and (inner := _scores(args[here])):
                return inner.then(node, Step("scale", args[other], reciprocal=name == "div"))
    if name == "add" and not node.kwargs:
        for here, other in ((0, 1), (1, 0)):
            if _is_mask(args[other], torch.float32) and (inner := _scores(args[here])):
                return inner.then(node, Step("add", args[other]))
    if name == "masked_fill" and _is_mask(args[1], torch.bool) and (fill := _fill(args[2])) is not None:
        inner = _scores(args[0])
        return inner.then(node, Step("fill", args[1], fill=fill)) if inner else None
    if name == "where" and len(args) == 3 and _is_mask(args[0], torch.bool):
        for here, other, kind in ((1, 2, "keep"), (2, 1, "fill")):
            if (fill := _fill(args[other])) is not None and (inner := _scores(args[here])):
                return inner.then(node, Step(kind, args[0], fill=fill))
    return None


def _reshaped(node: fx.Node) -> Scores | None:
    """Return scores whose heads are unfolded from the batch, [BN, T, S] -> [B, N, T, S], or folded back; or None."""
    before, after = value(node.args[0]), value(node)
    inner = _scores(node.args[0])
    if inner is None or before is None or after is None or before.shape[-2:] != after.shape[-2:]:
        return None
    if (before.dim(), after.dim()) == (3, 4):
        return inner.then(node, Step("split", list(node.args[1])[:2]))  # type: ignore[arg-type]
    return inner.then(node, Step("merge")) if (before.dim(), after.dim()) == (4, 3) else None


def _key_product(node: fx.Node) -> Scores | None:
    name = operator(node)
    args: list[Any] = list(node.args)
    if name == "einsum":
        return _key_einsum(node)
    steps: list[Step] = []
    if name == "baddbmm":
        mask, *args = args
        if node.kwargs.get("beta", 1) != 1 or not _is_mask(mask, torch.float32):
            return None
        steps = [Step("scale", node.kwargs.get("alpha", 1)), Step("add", mask)]
    query, keyT = args[:2]
    dims = {v.dim() for n in (query, keyT, node) if (v := value(n)) is not None}
    if len(dims) != 1 or dims == {2}:
        return None
    num_dims = dims.pop()
    straight = tuple(range(num_dims))
    swapped = (*straight[:-2], num_dims - 1, num_dims - 2)
    key = Operand(keyT.args[0], straight) if _is_transposed(keyT, num_dims) else Operand(keyT, swapped)
    return Scores(Operand(query, straight), key, tuple(steps), (node,))


def _is_transposed(node: fx.Node, num_dims: int) -> bool:
    """Return whether a node only exchanges the last two dimensions."""
    if operator(node) == "mT":
        return True
    if operator(node) == "transpose":
        return {int(dim) % num_dims for dim in node.args[1:]} == {num_dims - 2, num_dims - 1}  # type: ignore[arg-type]
    return False


def _key_einsum(node: fx.Node) -> Scores | None:
    """Return the scores of an einsum whose result ends in (queries, keys), as "bthd,bshd->bhts"; or None."""
    parsed = _read_einsum(node)
    if parsed is None:
        return None
    (a, b), out = parsed
    operands = dict(zip((a, b), node.args[1], strict=True)) if a != b else {}  # type: ignore[arg-type]
    for query, key in ((a, b), (b, a)):
        width = [c for c in query if c in key and c not in out]
        if len(width) == 1 and operands and out[-2] not in key and out[-1] not in query:
            return Scores(
                Operand(operands[query], _order(query, out[:-1] + width[0])),
                Operand(operands[key], _order(key, out[:-2] + out[-1] + width[0])),
                (),
                (node,),
            )
    return None


def _value_product(node: fx.Node, weights: fx.Node) -> tuple[Operand, Operand] | None:
    """Return the value and the output where this node multiplies the softmax with a value; or None."""
    shape = value(node)
    if shape is None:
        return None
    straight = tuple(range(shape.dim()))
    if operator(node) in ("matmul", "bmm") and node.args[0] is weights and node.args[1] is not weights:
        factor = value(node.args[1])
        if factor is None or factor.dim() != shape.dim():
            return None
        return Operand(node.args[1], straight), Operand(node, straight)  # type: ignore[arg-type]
    parsed = _read_einsum(node)
    if parsed is None:
        return None
    letters, out = parsed
    factors = list(node.args[1])  # type: ignore[arg-type]
    here = factors.index(weights)
    p, v = letters[here], letters[1 - here]
    width = [c for c in v if c not in p]
    if len(width) != 1 or p[-2] in v or set(out) != {*p[:-1], *width}:
        return None
    order = _order(v, p[:-2] + p[-1] + width[0])
    return Operand(factors[1 - here], order), Operand(node, _order(p[:-1] + width[0], out))


def _read_einsum(node: fx.Node) -> tuple[tuple[str, str], str] | None:
    """Return the letters of both operands and of the result; None unless each is a permutation of its dimensions."""
    if operator(node) != "einsum" or len(node.args[1]) != 2:  # type: ignore[arg-type]
        return None
    left, arrow, out = str(node.args[0]).replace(" ", "").partition("->")
    first, _, second = left.partition(",")
    words = (first, second, out)
    sound = arrow and "." not in left + out and all(len(set(w)) == len(w) for w in words)
    same_batch = set(first) & set(second) & set(out)
    if not sound or len({len(w) for w in words}) != 1 or len(same_batch) != len(out) - 2:
        return None
    return (first, second), out


def _order(given: str, wanted: str) -> tuple[int, ...]:
    return tuple(given.index(c) for c in wanted)


def _only_user(node: Any) -> fx.Node | None:
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    return next(iter(node.users))


def _is_float(node: Any) -> bool:
    found = value(node)
    return found is not None and found.is_floating_point()


def _is_scale(operand: Any) -> bool:
    """Return whether an operand is a number, or a tensor with one value for all scores of a head."""
    if isinstance(operand, int | float):
        return True
    found = value(operand)
    return found is not None and found.is_floating_point() and all(size == 1 for size in found.shape[-2:])


def _is_mask(operand: Any, dtype: torch.dtype) -> bool:
    found = value(operand)
    if found is None or found.dim() < 2:
        return False
    return found.dtype == torch.bool if dtype is torch.bool else found.is_floating_point()


def _fill(operand: Any) -> float | None:
    """Return the number that fills masked scores, if softmax makes it zero; or None."""
    if isinstance(operand, int | float):
        return float(operand) if operand <= _MASKED else None
    if operator(operand) in ("full", "scalar_tensor"):
        return _fill(operand.args[-1] if operator(operand) == "full" else operand.args[0])
    if operator(operand) in ("lift_fresh_copy", "detach"):
        return _fill(operand.args[0])
    owner = operand.graph.owning_module if isinstance(operand, fx.Node) else None
    constant = parameter(owner, operand) if owner is not None else None
    return _fill(constant.item()) if constant is not None and constant.dim() == 0 else None


def _replace(graph: fx.Graph, attention: Attention) -> None:
    """Insert the fused operator before the output, and erase what it replaces."""
    output = attention.output.node
    num_dims = len(attention.value.order)
    split = next((s.operand for s in attention.scores.steps if s.kind == "split"), None)

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return graph.call_function(target, args, kwargs)

    def to_4d(operand: Operand) -> fx.Node:
        node = operand.node
        if operand.order != tuple(range(num_dims)):
            node = call(_aten.permute.default, node, list(operand.order))
        if split is not None:
            return call(_aten.unflatten.int, node, 0, split)
        return node if num_dims == 4 else call(_aten.unsqueeze.default, node, 1)

    with graph.inserting_before(output):
        query_BNTH, key_BNSH, value_BNSH = map(to_4d, (attention.scores.query, attention.scores.key, attention.value))
        query_BNTH, scale = _scaled(call, query_BNTH, attention.scores.steps)
        steps = attention.scores.steps
        mask = combined_mask(call, steps, attention.scores.query.node, folded=num_dims == 3 and split is None)
        mixed = call(
            _aten.scaled_dot_product_attention.default,
            *(query_BNTH, key_BNSH, value_BNSH, mask, 0.0, False),
            scale=scale,
        )
        if num_dims == 3:
            mixed = call(_aten.squeeze.dim, mixed, 1) if split is None else call(_aten.flatten.using_ints, mixed, 0, 1)
        if attention.output.order != tuple(range(num_dims)):
            mixed = call(_aten.permute.default, mixed, list(attention.output.order))
    mixed.meta = dict(output.meta)
    output.replace_all_uses_with(mixed)
    for node in reversed(attention.scores.nodes):
        graph.erase_node(node)


def _scaled(call: Any, query_BNTH: fx.Node, steps: tuple[Step, ...]) -> tuple[fx.Node, float]:
    """Return the query and the scale of the fused operator.

    Numbers become the scale. A tensor, as a learned temperature for each head, multiplies the query.
    """
    scale = 1.0
    for step in steps:
        if step.kind != "scale":
            continue
        if isinstance(step.operand, fx.Node):
            target = _aten.div.Tensor if step.reciprocal else _aten.mul.Tensor
            query_BNTH = call(target, query_BNTH, step.operand)
        else:
            scale = scale / step.operand if step.reciprocal else scale * step.operand
    return query_BNTH, scale
