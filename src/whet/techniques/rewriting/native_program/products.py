"""Lower matrix products: linear layers, convolutions, attention, and products of activations."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from whet.core.artefact.native.program import AttendStep, CopyStep, FillStep, GatedStep, LinearStep, MultiplyStep
from whet.kernels.linear.layout import interleave
from whet.techniques.rewriting.graph import operator, value
from whet.techniques.rewriting.native_program.strided import Strided
from whet.techniques.rewriting.native_program.symbolic import Size, product, same
from whet.techniques.rewriting.native_program.values import Value, named, refuse

if TYPE_CHECKING:
    from whet.techniques.rewriting.native_program.lowering import Lowering

_MOST_GROUPS = 32  # of a convolution, each a matrix of its own


def linear(low: "Lowering", node: fx.Node) -> Value:
    """Lower a linear layer whose weights are constants that no module holds."""
    x, weight, bias = (*node.args, None)[:3]
    return _layer(low, node, x, low.fixed(weight), bias)


def multiply(low: "Lowering", node: fx.Node) -> Value:
    """Lower a product: with a constant matrix it is a linear layer."""
    bias, a, b = node.args if operator(node) == "addmm" else (None, *node.args)
    if operator(node) == "addmm" and any(number != 1 for number in node.kwargs.values()):
        raise refuse(node, "with factors")
    weight = low.fixed(b)
    if weight is not None and weight.dim() == 2:
        return _layer(low, node, a, weight.T, bias)
    if bias is not None:
        raise refuse(node, "of two activations")
    left, right = low.tensor(a), low.tensor(b)
    if min(left.dim, right.dim) < 2:
        raise refuse(node, "with a vector")
    return multiplied(low, left, right, low.shape(node))


def multiplied(low: "Lowering", a: Strided, b: Strided, shape: tuple[Size, ...]) -> Strided:
    out = low.builder.room(shape)
    low.builder.steps.append(MultiplyStep(a, b, out))
    return out


def _layer(low: "Lowering", node: fx.Node, x: Any, weight: Tensor | None, bias: Any) -> Strided:
    held = None if bias is None else low.fixed(bias)
    if weight is None or (bias is not None and (held is None or held.dim() != 1)):
        raise refuse(node, "with weights that are computed")
    if weight.dtype is not torch.float32:
        raise refuse(node, f"with weights in {weight.dtype}")
    matrix = low.builder.matrix(node.name, weight, held)
    out = low.builder.linear(low.rows(low.tensor(x)), matrix)
    return low.reshaped(out, low.shape(node))


def gated(low: "Lowering", node: fx.Node) -> Strided:
    """Lower activation(gate(x)) * up(x), in one matrix that holds both."""
    activation, gate, up = low.patterns.gated[node]
    layers: list[Any] = [low.graph_module.get_submodule(str(one.target)) for one in (gate, up)]
    biases = [layer.bias for layer in layers]
    bias = None
    if any(one is not None for one in biases):
        zeros = torch.zeros(layers[0].out_features)
        bias = interleave(*(zeros if one is None else one.detach() for one in biases))
    weight = interleave(*(layer.weight.detach() for layer in layers))
    matrix = low.builder.matrix(f"{gate.target}+{str(up.target).rpartition('.')[2]}", weight, bias)
    x = low.rows(low.tensor(gate.args[0]))
    out = low.builder.room((x.shape[0], layers[0].out_features))
    low.builder.steps.append(GatedStep(x, matrix, out, activation_name(activation)))
    return low.reshaped(out, low.shape(node))


def activation_name(node: fx.Node) -> str:
    """Return the name of an activation's node as an Activation of the kernels."""
    name = operator(node)
    return "GELU_TANH" if name == "gelu" and named(node)["approximate"] == "tanh" else name.upper()


def attend(low: "Lowering", node: fx.Node) -> Value:
    """Lower torch's attention. The result lies as [B, T, H, D], as what follows mostly wants it."""
    given = named(node)
    if given["dropout_p"]:
        raise refuse(node, "with dropout")
    q, k, v = (low.tensor(given[name]) for name in ("query", "key", "value"))
    shape, width = low.shape(node), q.shape[-1]
    if not isinstance(width, int):
        raise refuse(node, "with heads of a free width")
    lead = len(shape) - 4
    if lead > 0 or len({q.dim, k.dim, v.dim}) > 1:
        raise refuse(node, "with more than 4 dimensions")
    q, k, v = (_in_four(x) for x in (q, k, v))
    batch, heads = (1,) * (-lead) + shape[: 2 + lead] if lead else shape[:2]
    q = q.expanded((batch, heads, *q.shape[2:]))
    if given.get("enable_gqa"):
        k, v = (x.expanded((batch, *x.shape[1:])) for x in (k, v))
    else:
        k, v = (x.expanded((batch, heads, *x.shape[2:])) for x in (k, v))
    q, k, v = (x if same(x.strides[3], 1) else low.copied(x) for x in (q, k, v))
    B, H, T = q.shape[:3]
    out = low.builder.room((B, T, H, v.shape[3])).transposed(1, 2)
    mask = given["attn_mask"]
    place = None if mask is None else low.tensor(mask).expanded((B, H, T, k.shape[2]))
    scale = given.get("scale")
    scale = 1 / math.sqrt(width) if scale is None else float(scale)
    low.builder.steps.append(AttendStep(q, k, v, out, scale, bool(given["is_causal"]), place))
    return out if lead == 0 else low.reshaped(out, shape)


def _in_four(x: Strided) -> Strided:
    while x.dim < 4:
        x = x.unsqueezed(0)
    return x


def convolve(low: "Lowering", node: fx.Node) -> Value:
    """Lower a convolution: every window becomes a row, and the rows go through a linear layer."""
    given = named(node)
    weight, bias = low.fixed(given["weight"]), given["bias"]
    held = None if bias is None else low.fixed(bias)
    if weight is None or weight.dtype is not torch.float32 or (bias is not None and held is None):
        raise refuse(node, "with weights that are computed")
    num_dims, groups = weight.dim() - 2, int(given["groups"])
    if groups > _MOST_GROUPS:
        raise refuse(node, f"in {groups} groups")
    numbers = {name: _each(given[name], num_dims) for name in ("stride", "dilation")}
    x = _padded(low, node, low.tensor(given["input"]), weight, given["padding"], numbers["dilation"])
    out_shape = low.shape(node)
    windows = _windows(x, weight.shape[2:], out_shape[2:], numbers["stride"], numbers["dilation"])
    outs = [_group(low, node, windows, i, groups, weight, held) for i in range(groups)]
    rows = outs[0]
    if groups > 1:
        rows = low.builder.room((rows.shape[0], weight.shape[0]))
        width = weight.shape[0] // groups
        for i, out in enumerate(outs):
            low.builder.steps.append(CopyStep(out, rows.sliced(1, i * width, width)))
    last = low.reshaped(rows, (out_shape[0], *out_shape[2:], out_shape[1]))
    return last.permuted([0, num_dims + 1, *range(1, num_dims + 1)])


def _group(
    low: "Lowering", node: fx.Node, windows: Strided, group: int, groups: int, weight: Tensor, bias: Tensor | None
) -> Strided:
    """Return a group of a convolution as rows, [windows, outputs]."""
    num_outputs, num_inputs = weight.shape[0] // groups, weight.shape[1]
    channels = (windows.dim - 2) // 2 + 1  # the dimension of windows [B, *out, C, *kernel]
    own = windows.sliced(channels, group * num_inputs, num_inputs)
    own = low.reshaped(own, (product(own.shape[:channels]), product(own.shape[channels:])))
    part = slice(group * num_outputs, (group + 1) * num_outputs)
    own_bias = None if bias is None else bias[part]
    matrix = low.builder.matrix(node.name, weight[part].flatten(1), own_bias)
    return low.builder.linear(low.rows(own), matrix)


def _windows(x: Strided, kernel: Any, out: tuple[Size, ...], stride: list[int], dilation: list[int]) -> Strided:
    """Return the windows of an image [B, C, *size] as [B, *out, C, *kernel]. They overlap in memory."""
    batch, channel, *inner = x.strides
    strides = (
        batch,
        *(step * times for step, times in zip(inner, stride, strict=True)),
        channel,
        *(step * times for step, times in zip(inner, dilation, strict=True)),
    )
    return Strided(x.buffer, x.offset, (x.shape[0], *out, x.shape[1], *map(int, kernel)), strides)


def _padded(low: "Lowering", node: fx.Node, x: Strided, weight: Tensor, padding: Any, dilation: list[int]) -> Strided:
    """Return an image with zeros around it, in memory of its own if there are any."""
    num_dims = weight.dim() - 2
    if padding == "valid":
        return x
    if padding == "same":
        total = [d * (int(k) - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    elif isinstance(padding, str):
        raise refuse(node, f"with padding {padding}")
    else:
        pads = [(pad, pad) for pad in _each(padding, num_dims)]
    if not any(before or after for before, after in pads):
        return x
    shape = (*x.shape[:2], *(b + size + a for size, (b, a) in zip(x.shape[2:], pads, strict=True)))
    out = low.builder.room(shape)
    low.builder.steps.append(FillStep(out, 0.0))
    inner = out
    for i, (before, _) in enumerate(pads):
        inner = inner.sliced(2 + i, before, x.shape[2 + i])
    low.builder.steps.append(CopyStep(x, inner))
    return out


def _each(found: Any, num_dims: int) -> list[int]:
    """Return an argument with one number for each dimension, or one for all of them."""
    numbers = [found] if isinstance(found, int) else list(found)
    return numbers * num_dims if len(numbers) == 1 else numbers


def batch_norm(low: "Lowering", node: fx.Node) -> Strided:
    """Lower a batch norm in evaluation: a factor and a summand for each channel."""
    given = named(node)
    if given.get("training"):
        raise refuse(node, "in training")
    tensors = [None if given[name] is None else low.fixed(given[name]) for name in _BATCH_NORM]
    weight, bias, mean, variance = tensors
    if mean is None or variance is None:
        raise refuse(node, "without statistics")
    factor = (variance.double() + given["eps"]).rsqrt()
    factor = factor if weight is None else factor * weight.double()
    summand = -mean.double() * factor + (0.0 if bias is None else bias.double())
    x = low.tensor(given["input"])
    if _scales_last(low, node.args[0], factor, summand):
        return x
    places = [
        low.builder.constant(one.float().reshape(-1, *[1] * (x.dim - 2)).contiguous()) for one in (factor, summand)
    ]
    scaled = low.builder.elementwise("mul", x.shape, x, places[0])
    return low.builder.elementwise("add", x.shape, scaled, places[1])


_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def _scales_last(low: "Lowering", source: Any, factor: Tensor, summand: Tensor) -> bool:
    """Put a factor and a summand for each output into the weights of the convolution before, if that can be done."""
    last = low.builder.steps[-1] if low.builder.steps else None
    is_convolution = operator(source) in ("conv1d", "conv2d") and len(source.users) == 1
    if not is_convolution or not isinstance(last, LinearStep) or value(source) is None:
        return False
    weights = low.builder.matrices[last.weights]
    if len(weights.weight) != len(factor) or last.out.buffer != low.tensor(source).buffer:
        return False
    bias = torch.zeros_like(factor) if weights.bias is None else weights.bias.double()
    weights.weight = (weights.weight.double() * factor[:, None]).float()
    weights.bias = (bias * factor + summand).float()
    return True
