"""Run causal convolutions and their gradients on a GPU, by kernels in Triton.

Needs triton, which torch brings for CUDA. A program takes TOKENS tokens of BLOCK channels, and reads the inputs of each
tap. Shape suffixes: B batch, L tokens, C channels, K taps, S = K - 1 inputs before the first token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from whet.kernels.dispatch import as_floats
from whet.kernels.selective_scan.structs import rows

TOKENS = 32
BLOCK = 64


@triton.jit  # type: ignore[untyped-decorator]
def _input(x, initial, t, channel, x_l, L, C, K: tl.constexpr, HAS_INITIAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the inputs of tokens t, [tokens, channels]: those before the first token are the initial ones."""
    wanted = channel[None, :] < C
    found = tl.load(
        x + t[:, None] * x_l + channel[None, :], mask=wanted & (t[:, None] >= 0) & (t[:, None] < L), other=0.0
    )
    found = found.to(tl.float32)
    if HAS_INITIAL:
        place = (t[:, None] + K - 1) * C + channel[None, :]
        found += tl.load(initial + place, mask=wanted & (t[:, None] < 0) & (t[:, None] >= 1 - K), other=0.0)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _sums(  # type: ignore[no-untyped-def]
    x, weight, bias, initial, t, channel, x_l, L, C,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INITIAL: tl.constexpr,
):  # fmt: skip
    """Return the sums before the activation, [tokens, channels]."""
    y = t[:, None] * 0.0 + channel[None, :] * 0.0
    if HAS_BIAS:
        y += tl.load(bias + channel, mask=channel < C, other=0.0)[None, :]
    for k in tl.static_range(K):
        tap = tl.load(weight + k * C + channel, mask=channel < C, other=0.0)
        y += tap[None, :] * _input(x, initial, t + (k + 1 - K), channel, x_l, L, C, K, HAS_INITIAL)
    return y


@triton.jit  # type: ignore[untyped-decorator]
def _outputs(  # type: ignore[no-untyped-def]
    x, weight, bias, initial, out, x_b, x_l, L, C,
    K: tl.constexpr, SILU: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INITIAL: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunks = tl.cdiv(L, TOKENS)
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    t = (tl.program_id(0) % chunks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    initial += batch * (K - 1) * C
    y = _sums(x + batch * x_b, weight, bias, initial, t, channel, x_l, L, C, K, HAS_BIAS, HAS_INITIAL)
    if SILU:
        y = y * tl.sigmoid(y)
    place = (batch * L + t[:, None]) * C + channel[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=(t[:, None] < L) & (channel[None, :] < C))


@triton.jit  # type: ignore[untyped-decorator]
def _gradients_of_sums(  # type: ignore[no-untyped-def]
    x, weight, bias, initial, gout, gy, gweight, gbias, x_b, x_l, gout_b, gout_l, L, C,
    K: tl.constexpr, SILU: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INITIAL: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the sums, [B, L, C], and what this program adds to those of the taps and the bias."""
    chunks = tl.cdiv(L, TOKENS)
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    t = (tl.program_id(0) % chunks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (t[:, None] < L) & (channel[None, :] < C)
    x += batch * x_b
    initial += batch * (K - 1) * C
    given = gout + batch * gout_b + t[:, None] * gout_l + channel[None, :]
    gradient = tl.load(given, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        y = _sums(x, weight, bias, initial, t, channel, x_l, L, C, K, HAS_BIAS, HAS_INITIAL)
        gate = tl.sigmoid(y)
        gradient = gradient * gate * (1.0 + y * (1.0 - gate))
    tl.store(gy + (batch * L + t[:, None]) * C + channel[None, :], gradient, mask=inside)
    part = tl.program_id(0).to(tl.int64)
    tl.store(gbias + part * C + channel, tl.sum(gradient, 0), mask=channel < C)
    for k in tl.static_range(K):
        read = _input(x, initial, t + (k + 1 - K), channel, x_l, L, C, K, HAS_INITIAL)
        tl.store(gweight + (part * K + k) * C + channel, tl.sum(gradient * read, 0), mask=channel < C)


@triton.jit  # type: ignore[untyped-decorator]
def _gradients_of_inputs(  # type: ignore[no-untyped-def]
    gy, weight, gx, ginitial, L, C, K: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write the gradients of the inputs, [B, L, C], and of those before the first token, [B, K - 1, C]."""
    chunks = tl.cdiv(L + K - 1, TOKENS)
    batch = (tl.program_id(0) // chunks).to(tl.int64)
    t = (tl.program_id(0) % chunks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS) - (K - 1)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = channel[None, :] < C
    found = t[:, None] * 0.0 + channel[None, :] * 0.0
    for k in tl.static_range(K):
        later = t[:, None] + (K - 1 - k)
        tap = tl.load(weight + k * C + channel, mask=channel < C, other=0.0)
        inside = wanted & (later >= 0) & (later < L)
        found += tap[None, :] * tl.load(gy + (batch * L + later) * C + channel[None, :], mask=inside, other=0.0)
    after, before = wanted & (t[:, None] >= 0) & (t[:, None] < L), wanted & (t[:, None] < 0)
    tl.store(gx + (batch * L + t[:, None]) * C + channel[None, :], found, mask=after)
    tl.store(ginitial + (batch * (K - 1) + t[:, None] + K - 1) * C + channel[None, :], found, mask=before)


def conv_in_triton(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> Tensor:
    """Return the outputs of a causal convolution, in the type of x."""
    B, L, C = x.shape
    with torch.cuda.device_of(x):
        given, taps = rows(x), as_floats(weight.T)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        floats = [taps if part is None else as_floats(part) for part in (bias, initial)]
        _outputs[(B * triton.cdiv(L, TOKENS), triton.cdiv(C, BLOCK))](
            given, taps, *floats, out, given.stride(0), given.stride(1), L, C, K=weight.shape[1], SILU=silu,
            HAS_BIAS=bias is not None, HAS_INITIAL=initial is not None, TOKENS=TOKENS, BLOCK=BLOCK,
        )  # fmt: skip
        return out


def conv_gradients_in_triton(
    gout: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight, bias and the inputs before the first token, in float32."""
    (B, L, C), K = x.shape, weight.shape[1]
    with torch.cuda.device_of(x):
        given, passed, taps = rows(x), rows(gout), as_floats(weight.T)
        floats = [taps if part is None else as_floats(part) for part in (bias, initial)]
        parts, blocks = B * triton.cdiv(L, TOKENS), triton.cdiv(C, BLOCK)
        gy, gx, ginitial, gweight, gbias = (
            torch.empty(shape, dtype=torch.float32, device=x.device)
            for shape in ((B, L, C), (B, L, C), (B, K - 1, C), (parts, K, C), (parts, C))
        )
        _gradients_of_sums[(parts, blocks)](
            given, taps, *floats, passed, gy, gweight, gbias, given.stride(0), given.stride(1), passed.stride(0),
            passed.stride(1), L, C, K=K, SILU=silu, HAS_BIAS=bias is not None, HAS_INITIAL=initial is not None,
            TOKENS=TOKENS, BLOCK=BLOCK,
        )  # fmt: skip
        grid = (B * triton.cdiv(L + K - 1, TOKENS), blocks)
        _gradients_of_inputs[grid](gy, taps, gx, ginitial, L, C, K=K, TOKENS=TOKENS, BLOCK=BLOCK)
        return gx, gweight.sum(0).T, gbias.sum(0), ginitial
