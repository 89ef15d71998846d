"""Run selective scans and their gradients on a GPU, by kernels in Triton. Needs triton, which torch brings for CUDA.

Scans with one rate a head are products of matrices (triton_heads.py), others go through the tokens of a chunk by a scan
of pairs (triton_diagonal.py). All chunks run at the same time, so results are equal but for rounding, and not bit for
bit, however tokens are spread over calls. Products of float32 are exact to float32, unless
torch.set_float32_matmul_precision allows TF32; those of narrower inputs take TF32.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from whet.kernels.dispatch import as_floats
from whet.kernels.selective_scan import triton_diagonal, triton_heads
from whet.kernels.selective_scan.native import is_per_head
from whet.kernels.selective_scan.reference import ScanInputs
from whet.kernels.selective_scan.structs import rows
from whet.kernels.selective_scan.triton_parts import hand_on, step

HEAD_TOKENS = 64  # of a chunk, with one rate a head
DIAGONAL_TOKENS = 32  # of a chunk, with rates for each channel
ELEMENTS = 2048  # tokens x channels x states of a program with rates for each channel
BUNDLE_CHANNELS = 64  # over which a program sums gradients of B and C
HAND_ON_BLOCK = 256

_LARGEST_HEAD = 128  # channels that one program holds all
_MOST_STATES = 256


def fits(x: ScanInputs) -> bool:
    """Return whether the kernels can hold the states of a channel."""
    return x.B_BLGN.shape[3] <= _MOST_STATES


def starts_shape(x: ScanInputs) -> tuple[int, ...]:
    """Return the shape of the states that forward saves for the backward pass."""
    B, L, H, P = x.u_BLHP.shape
    return (B, triton.cdiv(L, _tokens(x)), H, P, x.B_BLGN.shape[3])


def _by_heads(x: ScanInputs) -> bool:
    return is_per_head(x) and x.u_BLHP.shape[3] <= _LARGEST_HEAD


def _tokens(x: ScanInputs) -> int:
    return HEAD_TOKENS if _by_heads(x) else DIAGONAL_TOKENS


class _Call:
    """Hold what all kernels of one scan are given.

    Attributes:
        views: u, delta, b, c, z as `rows` returns them; u in the place of an absent z.
        floats: a, d, bias in float32; a in the place of those that are absent.
        sizes: L, chunks, H, P, N, heads of a group, and the limits of the step sizes.
        flags: What the kernels of this form are compiled for.
    """

    def __init__(self, x: ScanInputs) -> None:
        self.x = x
        self.by_heads = _by_heads(x)
        self.B, self.L, self.H, self.P = x.u_BLHP.shape
        self.G, self.N = x.B_BLGN.shape[2:]
        u, delta, b, c = (rows(part) for part in (x.u_BLHP, x.delta_BLHq, x.B_BLGN, x.C_BLGN))
        self.views = (u, delta, b, c, u if x.z_BLHP is None else rows(x.z_BLHP))
        a = as_floats(x.A_HqM)
        self.floats = (a, *(a if part is None else as_floats(part) for part in (x.D_Hq, x.bias_Hq)))
        self.chunks = triton.cdiv(self.L, _tokens(x))
        limits = (float(x.delta_min), float(x.delta_max))
        self.sizes = (self.L, self.chunks, self.H, self.P, self.N, self.H // self.G, *limits)
        self.states = triton.next_power_of_2(self.N)
        self.flags: dict[str, Any] = {"SOFTPLUS": x.softplus, "HAS_BIAS": x.bias_Hq is not None}
        self.flags |= {"HAS_Z": x.z_BLHP is not None, "TOKENS": _tokens(x)}
        if self.by_heads:
            self.flags["PRECISION"] = _precision(u)
            self.block = min(64, max(16, triton.next_power_of_2(self.P)))
        else:
            self.flags["PER_HEAD"] = is_per_head(x)
            widest = max(1, ELEMENTS // (DIAGONAL_TOKENS * self.states))
            self.block = min(widest, triton.next_power_of_2(self.P))

    def strides(self, *tensors: Tensor) -> tuple[int, ...]:
        """Return the strides of sequences and tokens of each tensor."""
        return tuple(stride for tensor in tensors for stride in tensor.stride()[:2])

    def empty(self, *shape: int) -> Tensor:
        """Return new memory in float32 beside the inputs."""
        return torch.empty(shape, dtype=torch.float32, device=self.x.u_BLHP.device)

    def parts(self, values: Tensor, weights: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
        """Return what each chunk adds to a state, or to its gradient, of zeros; and the sums of step sizes."""
        (a, _, bias), (_, delta, _, _, z) = self.floats, self.views
        parts = self.empty(*starts_shape(self.x))
        totals = self.empty(self.B, self.chunks, self.H, 1 if is_per_head(self.x) else self.P)
        kernel = triton_heads.head_parts if self.by_heads else triton_diagonal.diagonal_parts
        strides = self.strides(values, weights, z, delta)
        states = min(64, max(16, self.states)) if self.by_heads else self.states
        blocks = self.H * triton.cdiv(self.P, self.block), triton.cdiv(self.N, states)
        kernel[(self.B * self.chunks, *blocks)](
            values, weights, z, delta, a, bias, parts, totals, *strides, *self.sizes,
            BACKWARD=backward, BP=self.block, BN=states, **self.flags,
        )  # fmt: skip
        return parts, totals

    def hand_on(self, parts: Tensor, totals: Tensor, first: Tensor | None, reverse: bool) -> Tensor:
        """Turn the parts into the states before each chunk, and return the state in the end, [B, H, P, N]."""
        last = self.empty(self.B, self.H, self.P, self.N)
        begin = last if first is None else as_floats(first)
        hand_on[(self.B, triton.cdiv(last[0].numel(), HAND_ON_BLOCK))](
            parts, totals, self.floats[0], begin, last, self.chunks, self.H, self.P, self.N,
            REVERSE=reverse, HAS_FIRST=first is not None, PER_HEAD=is_per_head(self.x), BLOCK=HAND_ON_BLOCK,
        )  # fmt: skip
        return last


def _precision(u: Tensor) -> str:
    if torch.version.hip is not None:
        return "ieee"
    return "ieee" if u.dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest" else "tf32"


def scan_in_triton(x: ScanInputs, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return out, the last states, and if they are to be saved out before the gate and the states before each chunk."""
    with torch.cuda.device_of(x.u_BLHP):
        call = _Call(x)
        out = torch.empty(x.u_BLHP.shape, dtype=x.u_BLHP.dtype, device=x.u_BLHP.device)
        if call.L == 1 and not save:
            return out, _step(call, out), call.empty(0), call.empty(0)
        u, delta, b, c, z = call.views
        a, d, bias = call.floats
        starts, totals = call.parts(u, b, False)
        last = call.hand_on(starts, totals, x.initial_BHPN, False)
        kept = call.empty(*(out.shape if save and x.z_BLHP is not None else (0,)))
        kernel = triton_heads.head_outputs if call.by_heads else triton_diagonal.diagonal_outputs
        states = min(32, max(16, call.states)) if call.by_heads else call.states
        kernel[(call.B * call.chunks, call.H * triton.cdiv(call.P, call.block))](
            u, delta, b, c, z, a, d, bias, starts, out, kept, *call.strides(u, delta, b, c, z), *call.sizes,
            HAS_D=x.D_Hq is not None, KEEP=kept.numel() > 0, BP=call.block, BN=states, num_stages=2, **call.flags,
        )  # fmt: skip
        return out, last, kept, starts if save else call.empty(0)


def _step(call: _Call, out: Tensor) -> Tensor:
    """Write the outputs of a single token, and return the states after it."""
    x, (u, delta, b, c, z), (a, d, bias) = call.x, call.views, call.floats
    last = call.empty(call.B, call.H, call.P, call.N)
    initial = last if x.initial_BHPN is None else as_floats(x.initial_BHPN)
    block = min(triton.next_power_of_2(call.P), max(1, ELEMENTS // call.states))
    flags = {name: call.flags[name] for name in ("SOFTPLUS", "HAS_BIAS", "HAS_Z")}
    _, _, H, P, N, heads, least, most = call.sizes
    step[(call.B, call.H * triton.cdiv(call.P, block))](
        u, delta, b, c, z, a, d, bias, initial, out, last, *(part.stride(0) for part in call.views),
        H, P, N, heads, least, most, PER_HEAD=is_per_head(x), HAS_D=x.D_Hq is not None,
        HAS_INITIAL=x.initial_BHPN is not None, BP=block, BN=call.states, **flags,
    )  # fmt: skip
    return last


def gradients_in_triton(
    x: ScanInputs, gout_BLHP: Tensor, glast_BHPN: Tensor | None, y: Tensor, starts: Tensor
) -> dict[str, Tensor]:
    """Return the gradients in float32, by the names of whet.kernels.selective_scan.reference.scan_gradients."""
    with torch.cuda.device_of(x.u_BLHP):
        call = _Call(x)
        gout = rows(gout_BLHP)
        ends, totals = call.parts(gout, call.views[3], True)
        found = {"initial": call.hand_on(ends, totals, glast_BHPN, True)}
        return found | (_of_heads if call.by_heads else _of_channels)(call, gout, y, starts, ends)


def _of_heads(call: _Call, gout: Tensor, y: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
    x, B, L, H = call.x, call.B, call.L, call.H
    gu, gz = (call.empty(*x.u_BLHP.shape) for _ in range(2))
    gdelta, ga, gd = call.empty(B, L, H, 1), call.empty(B, call.chunks, H), call.empty(B, call.chunks, H)
    gb, gc = (call.empty(B, L, H, call.N) for _ in range(2))
    triton_heads.head_gradients[(B * call.chunks, H)](
        *call.views, gout, *call.floats, y, starts, ends, gu, gdelta, gz, ga, gd, gb, gc,
        *call.strides(*call.views, gout), *call.sizes, HAS_D=x.D_Hq is not None,
        BP=max(16, triton.next_power_of_2(call.P)), BN=min(32, max(16, call.states)), num_warps=8, num_stages=1,
        **call.flags,
    )  # fmt: skip
    b, c = (part.unflatten(2, (call.G, -1)).sum(3) for part in (gb, gc))
    return _named(x, gu, gdelta, gz, ga.sum((0, 1)).view(x.A_HqM.shape), gd.sum((0, 1)), b, c)


def _of_channels(call: _Call, gout: Tensor, y: Tensor, starts: Tensor, ends: Tensor) -> dict[str, Tensor]:
    x, B, H, P = call.x, call.B, call.H, call.P
    blocks = H // call.G * triton.cdiv(P, call.block)
    bundle = min(blocks, max(1, BUNDLE_CHANNELS // call.block))
    bundles = triton.cdiv(blocks, bundle)
    gu, gdelta, gz = (call.empty(*x.u_BLHP.shape) for _ in range(3))
    ga, gd = call.empty(*starts.shape), call.empty(*starts.shape[:-1])
    gb, gc = (call.empty(B, call.L, call.G, bundles, call.N) for _ in range(2))
    triton_diagonal.diagonal_gradients[(B * call.chunks, call.G * bundles)](
        *call.views, gout, *call.floats, y, starts, ends, gu, gdelta, gz, ga, gd, gb, gc,
        *call.strides(*call.views, gout), *call.sizes, HAS_D=x.D_Hq is not None,
        BUNDLE=bundle, BP=call.block, BN=call.states, **call.flags,
    )  # fmt: skip
    a = ga.sum((0, 1)).sum_to_size(x.A_HqM.shape)
    return _named(x, gu, gdelta.sum_to_size(x.delta_BLHq.shape), gz, a, gd.sum((0, 1)), gb.sum(3), gc.sum(3))


def _named(
    x: ScanInputs, u: Tensor, delta: Tensor, z: Tensor, a: Tensor, d: Tensor, b: Tensor, c: Tensor
) -> dict[str, Tensor]:
    """Return gradients by name; those of absent tensors hold nothing and are left out."""
    found = {"u": u, "delta": delta, "A": a, "B": b, "C": c}
    if x.z_BLHP is not None:
        found["z"] = z
    if x.D_Hq is not None:
        found["D"] = d.view(x.D_Hq.shape[0], -1).sum_to_size(x.D_Hq.shape)
    if x.bias_Hq is not None:
        found["bias"] = delta.sum((0, 1))
    return found
