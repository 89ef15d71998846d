"""Compute causal convolutions of each channel, with bias and SiLU, as the torch operator whet::causal_conv.

A state holds the last K - 1 inputs, so that a sequence can come in parts: the results are the same, bit for bit.

Shape suffixes: B batch, L tokens, C channels, K taps, S = K - 1 inputs before the first token.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.causal_conv.reference import activated, conv_gradients, conv_sums
from whet.kernels.causal_conv.structs import Gradients, Problem
from whet.kernels.dispatch import as_floats, as_type, kernels_for, pointer, triton_for
from whet.kernels.selective_scan.structs import rows, view


def causal_conv(
    x_BLC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None = None,
    initial_BSC: Tensor | None = None,
    *,
    silu: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute a convolution of each channel with its last K inputs. It has gradients for all tensors.

    Args:
        x_BLC: The inputs, of a floating type.
        weight_CK: The taps of each channel; the last one is for the token itself.
        initial_BSC: The inputs before the first token, the last one last. None: zeros.

    Returns:
        The outputs [B, L, C] in the type of x, and the last K - 1 inputs [B, S, C] for the next call, in the type of x.

    Raises:
        InputsError: Shapes, types or devices do not fit.
    """
    out = conv_operator(x_BLC, weight_CK, bias_C, initial_BSC, silu)
    num_kept = weight_CK.shape[1] - 1
    if initial_BSC is None:
        initial_BSC = x_BLC.new_zeros(x_BLC.shape[0], num_kept, x_BLC.shape[2])
    inputs = torch.cat((initial_BSC.to(x_BLC.dtype), x_BLC[:, max(0, x_BLC.shape[1] - num_kept) :]), dim=1)
    return out, inputs[:, inputs.shape[1] - num_kept :]


@torch.library.custom_op("whet::causal_conv", mutates_args=())
def conv_operator(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> Tensor:
    _check(x, weight, bias, initial)
    if triton_for(x, weight, bias, initial):
        from whet.kernels.causal_conv.cuda import conv_in_triton

        return conv_in_triton(x, weight, bias, initial, silu)
    library = kernels_for(x, weight, bias, initial) if x.dtype is not torch.float64 else None
    if library is None:
        return as_type(activated(conv_sums(x, weight, bias, initial), silu), x)
    problem, _kept = _fill(x, weight, bias, initial, silu)
    is_bf16 = x.dtype is torch.bfloat16
    out = torch.empty(x.shape, dtype=torch.bfloat16 if is_bf16 else torch.float32)
    library.functions.whet_causal_conv(ctypes.byref(problem), pointer(out), is_bf16)
    return as_type(out, x)


@conv_operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("whet::causal_conv_backward", mutates_args=())
def conv_backward_operator(
    gout: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool
) -> list[Tensor]:
    """Return the gradients of x, weight, bias and the inputs before the first token; empty for those that are None."""
    if triton_for(x, gout):
        from whet.kernels.causal_conv.cuda import conv_gradients_in_triton

        found = conv_gradients_in_triton(gout, x, weight, bias, initial, silu)
    elif x.dtype is torch.float64 or (library := kernels_for(x, gout)) is None:
        found = conv_gradients(x, weight, bias, initial, silu, gout)
    else:
        found = _gradients_native(library, gout, x, weight, bias, initial, silu)
    inputs = (x, weight, bias, initial)
    return [
        x.new_empty(0) if value is None else gradient.to(value.dtype).contiguous()
        for gradient, value in zip(found, inputs, strict=True)
    ]


@conv_backward_operator.register_fake
def _(gout: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> list[Tensor]:
    return [x.new_empty(0) if value is None else value.new_empty(value.shape) for value in (x, weight, bias, initial)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gout: Tensor) -> tuple[Tensor | None, ...]:
    found = conv_backward_operator(gout, *ctx.saved_tensors, ctx.silu)
    return (*(None if x is None else g for x, g in zip(ctx.saved_tensors, found, strict=True)), None)


conv_operator.register_autograd(_backward, setup_context=_keep)


def _fill(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool
) -> tuple[Problem, tuple[Tensor | None, ...]]:
    """Return the structure for the kernels, and the tensors that it points to."""
    B, L, C = x.shape
    given = rows(x)
    floats = [None if part is None else as_floats(part) for part in (weight.T, bias, initial)]
    struct = Problem(B, L, C, weight.shape[1], silu, view(given), *(pointer(part) for part in floats))
    return struct, (given, *floats)


def _gradients_native(
    library: Library,
    gout: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem, _kept = _fill(x, weight, bias, initial, silu)
    parts = library.functions.whet_causal_conv_parts(ctypes.byref(problem))
    C, K = weight.shape
    of_x, of_weight, of_bias = torch.empty(x.shape), torch.empty(parts, K, C), torch.empty(parts, C)
    of_initial = torch.empty(x.shape[0], K - 1, C)
    given = rows(gout)
    struct = Gradients(view(given), pointer(of_x), pointer(of_initial), pointer(of_weight), pointer(of_bias))
    if initial is None:
        struct.initial = None
    library.functions.whet_causal_conv_backward(ctypes.byref(problem), ctypes.byref(struct))
    return of_x, of_weight.sum(0).T, of_bias.sum(0), of_initial


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None) -> None:
    """Raise InputsError unless the shapes and types fit each other. A kernel would read beyond wrong ones."""
    if x.dim() != 3 or weight.dim() != 2 or 0 in x.shape or 0 in weight.shape:
        raise InputsError(
            f"x is [B, L, C] and the weight [C, K], none of them 0, not {list(x.shape)} and {list(weight.shape)}"
        )
    B, _, C = x.shape
    K = weight.shape[1]
    wanted = {"weight": (weight, (C, K)), "bias": (bias, (C,)), "initial": (initial, (B, K - 1, C)), "x": (x, x.shape)}
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and (tensor.shape != shape or not tensor.is_floating_point()):
            raise InputsError(
                f"{name} of a convolution of {C} channels with {K} taps, batch {B}, is {list(shape)} of a floating "
                f"type, not {tensor.dtype} {list(tensor.shape)}"
            )
