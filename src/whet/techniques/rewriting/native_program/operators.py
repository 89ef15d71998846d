"""Say what becomes of each operator of a graph: views of the same numbers, and steps of whet's kernels."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from whet.core.artefact.native.program import (
    CopyStep,
    FillStep,
    NormaliseStep,
    NormStep,
    ReduceStep,
    SoftmaxStep,
)
from whet.techniques.rewriting.graph import operator, value
from whet.techniques.rewriting.native_program import lookups, products
from whet.techniques.rewriting.native_program.strided import Strided
from whet.techniques.rewriting.native_program.symbolic import Size, product
from whet.techniques.rewriting.native_program.values import Value, named, refuse

if TYPE_CHECKING:
    from whet.techniques.rewriting.native_program.lowering import Handler, Lowering

_UNARY = {
    **{
        name: name for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf", "floor")
    },
    **{name: name for name in ("relu", "silu", "tanh", "sigmoid", "round")},
}
_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "max", "minimum": "min", "pow": "pow"}
_REDUCTIONS = {"mean": "mean", "sum": "sum", "amax": "max"}


def _same(low: "Lowering", node: fx.Node) -> Value:
    """Lower what only hands its float32 input on."""
    return low.tensor(node.args[0])


def _view(low: "Lowering", node: fx.Node) -> Value:
    return low.reshaped(low.tensor(node.args[0]), low.shape(node))


def _transpose(low: "Lowering", node: fx.Node) -> Value:
    x = low.tensor(node.args[0])
    match operator(node):
        case "transpose":
            a, b = (int(dim) % x.dim for dim in node.args[1:3])  # type: ignore[arg-type]
            return x.transposed(a, b)
        case "permute":
            return x.permuted([int(dim) % x.dim for dim in node.args[1]])  # type: ignore[arg-type, union-attr]
    return x.transposed(x.dim - 2, x.dim - 1) if x.dim > 1 else x


def _unsqueeze(low: "Lowering", node: fx.Node) -> Value:
    return low.tensor(node.args[0]).unsqueezed(int(node.args[1]))  # type: ignore[arg-type]


def _expand(low: "Lowering", node: fx.Node) -> Value:
    return low.tensor(node.args[0]).expanded(low.shape(node))


def _select(low: "Lowering", node: fx.Node) -> Value:
    x, (dim, index) = low.tensor(node.args[0]), low.sizes(node.args[1:3])
    return x.selected(dim % x.dim, _from_start(node, index, x.shape[dim]))


def _slice(low: "Lowering", node: fx.Node) -> Value:
    x, given = low.tensor(node.args[0]), named(node)
    dim = int(given["dim"]) % x.dim
    start = _from_start(node, low.sizes(given["start"]) or 0, x.shape[dim])
    if isinstance(start, int):
        start = max(0, start)
    return x.sliced(dim, start, low.shape(node)[dim], given.get("step", 1))


def _from_start(node: fx.Node, index: Size, size: Size) -> Size:
    """Return an index that may count from the end as one that counts from the start."""
    if isinstance(index, int):
        return index if index >= 0 else size + index
    if not index.is_nonnegative and not index.is_negative:
        raise refuse(node, "from a place that depends on the sizes of the inputs")
    return index if index.is_nonnegative else size + index


def _parts(low: "Lowering", node: fx.Node) -> Value:
    """Lower what divides a tensor into several."""
    x, given = low.tensor(node.args[0]), named(node)
    dim = int(given["dim"]) % x.dim
    if operator(node) == "unbind":
        return [x.selected(dim, i) for i in range(len(node.meta["val"]))]
    found, first = [], 0
    for part in node.meta["val"]:
        size = low.sizes(list(part.shape))[dim]
        size = size.node.expr if isinstance(size, torch.SymInt) else size
        found.append(x.sliced(dim, first, size))
        first += size
    return found


def _cat(low: "Lowering", node: fx.Node) -> Value:
    given = named(node)
    is_stack = operator(node) == "stack"
    shape = low.shape(node)
    dim = int(given["dim"]) % len(shape)
    out, first = low.builder.room(shape), 0
    for part in given["tensors"]:
        if value(part) is None or value(part).dtype is not torch.float32:  # type: ignore[union-attr]
            raise refuse(node, "of several types")
        x = low.tensor(part).unsqueezed(dim) if is_stack else low.tensor(part)
        low.builder.steps.append(CopyStep(x, out.sliced(dim, first, x.shape[dim])))
        first += x.shape[dim]
    return out


def _pad(low: "Lowering", node: fx.Node) -> Value:
    given = named(node)
    pads = given["pad"]
    if given.get("mode", "constant") != "constant" or not all(isinstance(pad, int) for pad in pads):
        raise refuse(node)
    x, out, fill = low.tensor(node.args[0]), low.builder.room(low.shape(node)), given.get("value") or 0.0
    if any(pad < 0 for pad in pads) or not math.isfinite(fill):
        raise refuse(node, "with such pads")
    low.builder.steps.append(FillStep(out, float(fill)))
    inner = out
    for i, before in enumerate(pads[::2]):
        dim = x.dim - 1 - i
        inner = inner.sliced(dim, before, x.shape[dim])
    low.builder.steps.append(CopyStep(x, inner))
    return out


def _unary(low: "Lowering", node: fx.Node) -> Value:
    if named(node).get("decimals"):
        raise refuse(node, "to decimals")
    return low.builder.elementwise(_UNARY[operator(node)], low.shape(node), low.tensor(node.args[0]))


def _gelu(low: "Lowering", node: fx.Node) -> Value:
    name = "gelu_tanh" if named(node)["approximate"] == "tanh" else "gelu"
    return low.builder.elementwise(name, low.shape(node), low.tensor(node.args[0]))


def _binary(low: "Lowering", node: fx.Node) -> Value:
    if node in low.patterns.sums:
        return lookups.embeddings(low, node, low.patterns.sums[node])
    if node in low.patterns.rms_norms:
        return _spelled_rms_norm(low, node)
    if node in low.patterns.gated:
        return products.gated(low, node)
    if node in low.patterns.quick_gelus:
        return low.builder.elementwise("quick_gelu", low.shape(node), low.tensor(low.patterns.quick_gelus[node]))
    given = named(node)
    if given.get("rounding_mode") is not None:
        raise refuse(node, f"with rounding_mode={given['rounding_mode']}")
    a, b = node.args[:2]
    if operator(node) == "pow" and isinstance(b, int | float) and b in (2, 0.5, -0.5, -1, 3):
        return _power(low, node, float(b))
    alpha = given.get("alpha", 1)
    left, right = (_operand(low, node, arg) for arg in (a, b))
    if alpha != 1:
        right = low.builder.elementwise("mul", right.shape, right, _operand(low, node, alpha))
    return low.builder.elementwise(_BINARY[operator(node)], low.shape(node), left, right)


def _rsub(low: "Lowering", node: fx.Node) -> Value:
    if named(node).get("alpha", 1) != 1:
        raise refuse(node, "with alpha")
    a, b = (_operand(low, node, arg) for arg in node.args[:2])
    return low.builder.elementwise("sub", low.shape(node), b, a)


def _clamp(low: "Lowering", node: fx.Node) -> Value:
    x, given = low.tensor(node.args[0]), named(node)
    for bound, name in (("min", "max"), ("max", "min")):
        if (limit := given.get(bound)) is not None:
            x = low.builder.elementwise(name, low.shape(node), x, _operand(low, node, limit))
    return x


def _power(low: "Lowering", node: fx.Node, exponent: float) -> Strided:
    x, shape = low.tensor(node.args[0]), low.shape(node)
    if exponent in (2, 3):
        square = low.builder.elementwise("mul", shape, x, x)
        return square if exponent == 2 else low.builder.elementwise("mul", shape, square, x)
    return low.builder.elementwise({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], shape, x)


def _operand(low: "Lowering", node: fx.Node, arg: Any) -> Strided:
    """Return where an operand lies: a tensor, or a number."""
    if isinstance(arg, fx.Node) and arg in low.env:
        return low.tensor(arg)
    if isinstance(arg, bool | int | float):
        return low.builder.number(arg)
    raise refuse(node, "with a number that depends on the sizes of the inputs")


def _layer_norm(low: "Lowering", node: fx.Node) -> Value:
    given = named(node)
    x = low.tensor(node.args[0])
    if len(given["normalized_shape"]) != 1 or x.dim < 1:
        raise refuse(node, "over several dimensions")
    is_rms = operator(node) == "rms_norm"
    eps = given["eps"]
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    weight, bias = (_vector(low, node, given.get(name)) for name in ("weight", "bias"))
    return normalised(low, x, NormStep(weight, bias, float(eps), is_rms))


def normalised(low: "Lowering", x: Strided, norm: NormStep) -> Strided:
    rows = low.rows(x)
    out = low.builder.room(rows.shape)
    low.builder.steps.append(NormaliseStep(rows, norm, out))
    return low.reshaped(out, x.shape)


def _spelled_rms_norm(low: "Lowering", node: fx.Node) -> Strided:
    """Lower an RMS norm that is written out."""
    x, weight, eps = low.patterns.rms_norms[node]
    return normalised(low, low.tensor(x), NormStep(low.tensor(weight), None, eps, is_rms=True))


def _vector(low: "Lowering", node: fx.Node, arg: Any) -> Any:
    if arg is None:
        return None
    if low.fixed(arg) is None:
        raise refuse(node, "with weights that are computed")
    return low.tensor(arg)


def _softmax(low: "Lowering", node: fx.Node) -> Value:
    x = low.tensor(node.args[0])
    dim = int(node.args[1]) % x.dim  # type: ignore[arg-type]
    moved = x.transposed(dim, x.dim - 1)
    rows = low.rows(moved)
    out = low.builder.room(rows.shape)
    low.builder.steps.append(SoftmaxStep(rows, out))
    return low.reshaped(out, moved.shape).transposed(dim, x.dim - 1)


def _reduction(low: "Lowering", node: fx.Node) -> Value:
    x, given = low.tensor(node.args[0]), named(node)
    if given.get("dtype") not in (None, torch.float32):
        raise refuse(node, "in another dtype")
    dims = given.get("dim")
    dims = list(range(x.dim)) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
    gone = sorted(int(dim) % x.dim for dim in dims)
    kept = [i for i in range(x.dim) if i not in gone]
    moved = x.permuted([*kept, *gone])
    shape = moved.shape[: len(kept)]
    rows = low.reshaped(moved, (*shape, product(moved.shape[len(kept) :])))
    return low.reshaped(reduced(low, rows, _REDUCTIONS[operator(node)]), low.shape(node))


def reduced(low: "Lowering", rows: Strided, kind: Any) -> Strided:
    """Return one number for each row of [..., width]."""
    out = low.builder.room(rows.shape[:-1])
    low.builder.steps.append(ReduceStep(rows, out, kind))
    return out


def _average(low: "Lowering", node: fx.Node) -> Value:
    """Lower the mean of each channel."""
    x, sizes = low.tensor(node.args[0]), named(node)["output_size"]
    sizes = [sizes] if isinstance(sizes, int) else sizes
    if any(size != 1 for size in sizes):
        raise refuse(node, "to other sizes than 1")
    kept = x.dim - len(sizes)
    rows = low.reshaped(x, (*x.shape[:kept], product(x.shape[kept:])))
    return low.reshaped(reduced(low, rows, "mean"), low.shape(node))


def _repeat(low: "Lowering", node: fx.Node) -> Value:
    x, repeats = low.tensor(node.args[0]), low.sizes(node.args[1])
    while x.dim < len(repeats):
        x = x.unsqueezed(0)
    for i in range(x.dim):
        x = x.unsqueezed(2 * i)
    pairs = zip(repeats, x.shape[1::2], strict=True)
    return low.reshaped(x.expanded([size for pair in pairs for size in pair]), low.shape(node))


def _repeat_interleave(low: "Lowering", node: fx.Node) -> Value:
    given = named(node)
    x, times = low.tensor(given["self"]), given["repeats"]
    if not isinstance(times, int) or given.get("dim") is None:
        raise refuse(node)
    wide = x.unsqueezed(dim := int(given["dim"]) % x.dim + 1)
    return low.reshaped(wide.expanded((*wide.shape[:dim], times, *wide.shape[dim + 1 :])), low.shape(node))


def _group_norm(low: "Lowering", node: fx.Node) -> Value:
    given = named(node)
    x, groups = low.tensor(node.args[0]), int(given["num_groups"])
    num_channels = x.shape[1]
    weight, bias = (_vector(low, node, given.get(name)) for name in ("weight", "bias"))
    rows = low.reshaped(x, (x.shape[0] * groups, num_channels // groups * product(x.shape[2:])))
    found = low.reshaped(normalised(low, rows, NormStep(None, None, float(given["eps"]), False)), x.shape)
    for name, vector in (("mul", weight), ("add", bias)):
        if vector is not None:
            by_channel = low.reshaped(vector, (num_channels, *[1] * (x.dim - 2)))
            found = low.builder.elementwise(name, x.shape, found, by_channel)
    return found


def _norm(low: "Lowering", node: fx.Node) -> Value:
    """Lower the length of vectors."""
    given = named(node)
    dims = given.get("dim")
    if given.get("ord", given.get("p", 2)) not in (2, 2.0) or not dims:
        raise refuse(node, "of this order")
    x = low.tensor(node.args[0])
    dims = [dims] if isinstance(dims, int) else dims
    if [int(dim) % x.dim for dim in dims] != [x.dim - 1]:
        raise refuse(node, "over these dimensions")
    squares = low.builder.elementwise("mul", x.shape, x, x)
    sums = reduced(low, squares, "sum")
    lengths = low.builder.elementwise("sqrt", sums.shape, sums)
    return low.reshaped(lengths, low.shape(node))


_VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "view_as", "reshape_as")

OPERATORS: "dict[str, Handler]" = {
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "to", "_to_copy", "type_as", "lift_fresh_copy"), _same),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(("transpose", "permute", "t", "mT", "numpy_T"), _transpose),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind"), _parts),
    **dict.fromkeys(("cat", "stack"), _cat),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), _average),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "group_norm": _group_norm,
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm"), products.multiply),
    **dict.fromkeys(("conv1d", "conv2d"), products.convolve),
    "unsqueeze": _unsqueeze,
    "select": _select,
    "slice": _slice,
    "gelu": _gelu,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    "rsub": _rsub,
    "embedding": lookups.embedding,
    "index": lookups.index,
    "gather": lookups.gather,
    "masked_fill": lookups.masked_fill,
    "linear": products.linear,
    "batch_norm": products.batch_norm,
    "_native_batch_norm_legit_no_training": lambda low, node: [products.batch_norm(low, node)],
    "scaled_dot_product_attention": products.attend,
}
"""What becomes of an operator, by its name without overload and without the underscore of in-place forms."""
