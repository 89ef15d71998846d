"""Compute selective scans, the recurrences of Mamba-1 and Mamba-2, as the torch operator whet::selective_scan.

The kernels go through the tokens one by one, with sixteen channels in a register: the results are the same, bit for
bit, however the tokens are spread over calls. Exponentials have a relative error of at most 2e-7. For the backward
pass, states are saved every 32 tokens, and those between them are computed again. reference.py defines the numbers.

Shape suffixes: B batch, L tokens, D channels, N states, H heads, P channels of a head (D = H P), G groups of heads.
"""

import math
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.dispatch import kernels_for, triton_for
from whet.kernels.selective_scan.native import gradients_native, is_per_head, saved_shape, scan_native
from whet.kernels.selective_scan.reference import ScanInputs, outputs_of, scan_gradients, scan_states

_INF = math.inf
_LARGEST = sys.float_info.max
_GRADIENTS = ("u", "delta", "A", "B", "C", "D", "z", "bias", "initial")


def selective_scan(
    u_BLD: Tensor,
    delta_BLD: Tensor,
    A_DN: Tensor,
    B_BLN: Tensor,
    C_BLN: Tensor,
    D_D: Tensor | None = None,
    z_BLD: Tensor | None = None,
    delta_bias_D: Tensor | None = None,
    initial_BDN: Tensor | None = None,
    *,
    softplus: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence of Mamba-1, where every channel has rates of its own. It has gradients for all tensors.

    Args:
        u_BLD: The inputs, of a floating type.
        delta_BLD: The step sizes, before bias and softplus.
        A_DN: The rates, which are negative.
        B_BLN: What inputs add to the states.
        C_BLN: How states are read.
        D_D: How inputs pass to the output directly, if they do.
        z_BLD: The gate: the output is multiplied by silu(z).
        delta_bias_D: A bias of the step sizes.
        initial_BDN: The states before the first token. None: zeros.
        softplus: Whether softplus is applied to the step sizes, after the bias.

    Returns:
        The outputs [B, L, D] in the type of u, and the states after the last token [B, D, N] in float32 (float64 for
        float64).

    Raises:
        InputsError: Shapes, types or devices do not fit.
    """
    if u_BLD.dim() != 3 or A_DN.dim() != 2:
        raise InputsError(f"u is [B, L, D] and A [D, N], not {list(u_BLD.shape)} and {list(A_DN.shape)}")
    one_head = [None if x is None else x[:, :, None] for x in (u_BLD, delta_BLD, B_BLN, C_BLN, z_BLD)]
    u, delta, B, C, z = one_head
    D, bias = (None if x is None else x[None] for x in (D_D, delta_bias_D))
    initial = None if initial_BDN is None else initial_BDN[:, None]
    assert u is not None and delta is not None and B is not None and C is not None
    out, last = _scan(u, delta, A_DN[None], B, C, D, z, bias, initial, softplus, -_INF, _INF)
    return out[:, :, 0], last[:, 0]


def ssd(
    x_BLHP: Tensor,
    delta_BLH: Tensor,
    A_H: Tensor,
    B_BLGN: Tensor,
    C_BLGN: Tensor,
    D_H: Tensor | None = None,
    z_BLHP: Tensor | None = None,
    delta_bias_H: Tensor | None = None,
    initial_BHPN: Tensor | None = None,
    *,
    softplus: bool = True,
    delta_limits: tuple[float, float] = (0.0, _INF),
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence of Mamba-2, where a head has one step size and one rate. It has gradients for all tensors.

    Args:
        x_BLHP: The inputs, of a floating type.
        delta_BLH: The step sizes, before bias and softplus.
        A_H: The rates, which are negative.
        B_BLGN: What inputs add to the states. The heads are divided into G groups in order.
        C_BLGN: How states are read.
        D_H: How inputs pass to the output directly, if they do.
        z_BLHP: The gate: the output is multiplied by silu(z).
        delta_bias_H: A bias of the step sizes.
        initial_BHPN: The states before the first token. None: zeros.
        softplus: Whether softplus is applied to the step sizes, after the bias.
        delta_limits: The least and the largest step size, after softplus.

    Returns:
        The outputs [B, L, H, P] in the type of x, and the states after the last token [B, H, P, N] in float32 (float64
        for float64).

    Raises:
        InputsError: Shapes, types or devices do not fit.
    """
    if x_BLHP.dim() != 4 or A_H.dim() != 1 or delta_BLH.dim() != 3:
        shapes = " and ".join(str(list(x.shape)) for x in (x_BLHP, delta_BLH, A_H))
        raise InputsError(f"x is [B, L, H, P], delta [B, L, H] and A [H], not {shapes}")
    D, bias = (None if part is None else part[..., None] for part in (D_H, delta_bias_H))
    tensors = (x_BLHP, delta_BLH[..., None], A_H[:, None, None], B_BLGN, C_BLGN, D, z_BLHP, bias, initial_BHPN)
    return _scan(*tensors, softplus, *delta_limits)


def _scan(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    save = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    *others, delta_min, delta_max = arguments
    # torch's inductor cannot save a call with an infinite number.
    limits = max(delta_min, -_LARGEST), min(delta_max, _LARGEST)
    out, last, _, _ = scan_operator(*others, *limits, save)
    return out, last


def _inputs(*arguments: Any) -> ScanInputs:
    """Return the operator's arguments, with limits that are infinite where `_scan` has put the largest number."""
    x = ScanInputs(*arguments)
    least = -_INF if x.delta_min == -_LARGEST else x.delta_min
    return replace(x, delta_min=least, delta_max=_INF if x.delta_max == _LARGEST else x.delta_max)


@torch.library.custom_op("whet::selective_scan", mutates_args=())
def scan_operator(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    delta_min: float,
    delta_max: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Implement the operator on the tensors of a ScanInputs.

    With `save`, the third result is out before the gate (where there is one), and the fourth the states that the
    backward pass starts from; without it they are empty.
    """
    x = _inputs(u, delta, A, B, C, D, z, bias, initial, softplus, delta_min, delta_max)
    _check(x)
    if _runs_in_triton(x):
        from whet.kernels.selective_scan.cuda import scan_in_triton

        return scan_in_triton(x, save)
    library = kernels_for(u, delta, A, B, C, D, z, bias, initial) if u.dtype is not torch.float64 else None
    if library is not None:
        return scan_native(library, x, save)
    states = scan_states(x)
    out, y = outputs_of(x, states[1:])
    saved = save and u.dtype is not torch.float64
    kept = y if saved and z is not None else y.new_empty(0)
    return out, states[-1].clone(), kept, y.new_zeros(_starts_shape(x) if saved else (0,))


@scan_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = _inputs(*arguments[:-1])
    u, saved = x.u_BLHP, arguments[-1] and x.u_BLHP.dtype is not torch.float64
    last = u.new_empty((u.shape[0], *u.shape[2:], x.B_BLGN.shape[-1]), dtype=x.wide)
    y = u.new_empty(u.shape if saved and x.z_BLHP is not None else (0,), dtype=x.wide)
    return u.new_empty(u.shape), last, y, u.new_empty(_starts_shape(x) if saved else (0,), dtype=x.wide)


@torch.library.custom_op("whet::selective_scan_backward", mutates_args=())
def scan_backward_operator(
    gout: Tensor,
    glast: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    delta_min: float,
    delta_max: float,
    y: Tensor,
    starts: Tensor,
) -> list[Tensor]:
    """Return the gradients of u, delta, A, B, C, D, z, bias and initial; an empty tensor for those that are None."""
    x = _inputs(u, delta, A, B, C, D, z, bias, initial, softplus, delta_min, delta_max)
    if _runs_in_triton(x):
        from whet.kernels.selective_scan.cuda import gradients_in_triton

        found = gradients_in_triton(x, gout, glast, y, starts)
    else:
        library = kernels_for(gout, u) if u.dtype is not torch.float64 else None
        found = gradients_native(library, x, gout, glast, y, starts) if library else scan_gradients(x, gout, glast)
    inputs = (u, delta, A, B, C, D, z, bias, initial)
    return [
        u.new_empty(0) if value is None else found[name].to(value.dtype).contiguous()
        for name, value in zip(_GRADIENTS, inputs, strict=True)
    ]


@scan_backward_operator.register_fake
def _(gout: Tensor, glast: Tensor | None, *arguments: Any) -> list[Tensor]:
    return [gout.new_empty(0) if x is None else x.new_empty(x.shape) for x in arguments[: len(_GRADIENTS)]]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, softplus, delta_min, delta_max, save = inputs
    ctx.numbers = softplus, delta_min, delta_max
    ctx.save = save
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*tensors, *output[2:])


def _backward(ctx: Any, gout: Tensor | None, glast: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.save:
        raise InputsError("whet::selective_scan keeps what its backward needs only with save=True")
    *tensors, y, starts = ctx.saved_tensors
    if gout is None:
        gout = torch.zeros_like(tensors[0])
    found = scan_backward_operator(gout, glast, *tensors, *ctx.numbers, y, starts)
    gradients = [None if x is None else g for x, g in zip(tensors, found, strict=True)]
    return (*gradients, None, None, None, None)


scan_operator.register_autograd(_backward, setup_context=_keep)


def _runs_in_triton(x: ScanInputs) -> bool:
    others = (x.delta_BLHq, x.A_HqM, x.B_BLGN, x.C_BLGN, x.D_Hq, x.z_BLHP, x.bias_Hq, x.initial_BHPN)
    if not triton_for(x.u_BLHP, *others):
        return False
    from whet.kernels.selective_scan.cuda import fits

    return fits(x)


def _starts_shape(x: ScanInputs) -> tuple[int, ...]:
    if not _runs_in_triton(x):
        return saved_shape(x)
    from whet.kernels.selective_scan.cuda import starts_shape

    return starts_shape(x)


def _check(x: ScanInputs) -> None:
    """Raise InputsError unless the shapes and types fit each other. A kernel would read beyond wrong ones."""
    u = x.u_BLHP
    if u.dim() != 4 or x.B_BLGN.dim() != 4:
        raise InputsError(f"u is [B, L, H, P] and B [B, L, G, N], not {list(u.shape)} and {list(x.B_BLGN.shape)}")
    B, L, H, P = u.shape
    G, N = x.B_BLGN.shape[2:]
    per_head = is_per_head(x)
    q = 1 if per_head else P
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "u": (u, (B, L, H, P)),
        "delta": (x.delta_BLHq, (B, L, H, q)),
        "A": (x.A_HqM, (H, 1, 1) if per_head else (H, P, N)),
        "B": (x.B_BLGN, (B, L, G, N)),
        "C": (x.C_BLGN, (B, L, G, N)),
        "D": (x.D_Hq, (H, q)),
        "z": (x.z_BLHP, (B, L, H, P)),
        "delta_bias": (x.bias_Hq, (H, q)),
        "initial": (x.initial_BHPN, (B, H, P, N)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and (tensor.shape != shape or not tensor.is_floating_point()):
            raise InputsError(
                f"{name} of a scan over u {list(u.shape)} (batch, tokens, heads, channels of a head) with {N} states "
                f"is {list(shape)} of a floating type, not {tensor.dtype} {list(tensor.shape)}"
            )
    if 0 in (B, L, H, P, G, N) or H % G:
        raise InputsError(
            f"a scan has at least one of everything, and its heads divide into the groups of B, not u {list(u.shape)} "
            f"with {G} groups of {N} states"
        )
