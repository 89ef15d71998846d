"""Compute scans in which a head has one step size and one rate (Mamba-2) in Triton, by products of matrices.

Within a chunk, y[i] = sum over j <= i of exp(sum of delta A over j < k <= i) (c[i] b[j]) delta[j] u[j], the dual form
of Dao and Gu, 2024, arXiv:2405.21060, section 6. A program takes TOKENS tokens of one head; i and j are tokens, p
channels, n states. Sums of delta A between two tokens are sums of the numbers between them, masked before the
exponential. See triton_parts.py for how the kernels follow each other.
"""

import triton
import triton.language as tl

from whet.kernels.selective_scan.triton_parts import (
    load_gated,
    load_rows,
    raw_gradient,
    step_sizes,
    store_gate_gradient,
    store_outputs,
)


@triton.jit  # type: ignore[untyped-decorator]
def _steps(delta, bias, t, h, inside, stride, least, most, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the step sizes of a head [tokens]: before softplus, before they are limited, and as they are used."""
    raw = tl.load(delta + t * stride + h, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        raw += tl.load(bias + h)
    free, used = step_sizes(raw, least, most, SOFTPLUS)
    return raw, free, tl.where(inside, used, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _decays(exponents, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return exp of the sums of exponents over j < k <= i, [i, j]; 0 for j > i."""
    i, j = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    between = tl.cumsum(tl.where(i > j, exponents[:, None], 0.0), 0)
    return tl.where(i >= j, tl.exp(between), 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def head_parts(  # type: ignore[no-untyped-def]
    v, w, z, delta, a, bias, parts, totals, v_b, v_l, w_b, w_l, z_b, z_l, delta_b, delta_l,
    L, C, H, P, N, HEADS, least, most,
    BACKWARD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr,
    PRECISION: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write what each chunk adds to a state of zeros, where v is u and w is b, and the sums of its step sizes.

    With BACKWARD, write what each chunk adds to the gradient of the state before it, where v is gout and w is c.
    The grid's third axis divides the states.
    """
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    blocks = tl.cdiv(P, BP)
    h = tl.program_id(1) // blocks
    p = tl.program_id(1) % blocks * BP + tl.arange(0, BP)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    t = chunk.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    delta += batch * delta_b
    _, _, used = _steps(delta, bias, t, h, t < L, delta_l, least, most, SOFTPLUS, HAS_BIAS)
    rate = tl.load(a + h)
    inside = (t[:, None] < L) & (p[None, :] < P)
    if BACKWARD:
        weight = tl.exp(rate * tl.cumsum(used, 0))
        value = load_gated(v + batch * v_b, z + batch * z_b, t, h * P + p, inside, v_l, z_l, HAS_Z)
    else:
        later = (t + 1 < L) & (t + 1 < (chunk + 1) * TOKENS)
        _, _, after = _steps(delta, bias, t + 1, h, later, delta_l, least, most, SOFTPLUS, HAS_BIAS)
        weight = used * tl.exp(rate * tl.cumsum(after, 0, reverse=True))
        value = load_rows(v + batch * v_b, t, h * P + p, inside, v_l)
    tl.store(totals + (batch * C + chunk) * H + h, tl.sum(used, 0))
    factor = load_rows(w + batch * w_b, t, h // HEADS * N + n, (t[:, None] < L) & (n[None, :] < N), w_l)
    found = tl.dot(tl.trans(value * weight[:, None]), factor, input_precision=PRECISION)
    place = ((batch * C + chunk) * H * P + h * P + p[:, None]) * N + n[None, :]
    tl.store(parts + place, found, mask=(p[:, None] < P) & (n[None, :] < N))


@triton.jit  # type: ignore[untyped-decorator]
def head_outputs(  # type: ignore[no-untyped-def]
    u, delta, b, c, z, a, d, bias, starts, out, kept, u_b, u_l, delta_b, delta_l, b_b, b_l, c_b, c_l, z_b, z_l,
    L, C, H, P, N, HEADS, least, most,
    SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the outputs of each chunk from the states before it."""
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    blocks = tl.cdiv(P, BP)
    h = tl.program_id(1) // blocks
    p = tl.program_id(1) % blocks * BP + tl.arange(0, BP)
    t = chunk.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = (t[:, None] < L) & (p[None, :] < P)
    _, _, used = _steps(delta + batch * delta_b, bias, t, h, t < L, delta_l, least, most, SOFTPLUS, HAS_BIAS)
    exponents = used * tl.load(a + h)
    product = tl.zeros((TOKENS, TOKENS), tl.float32)
    from_start = tl.zeros((TOKENS, BP), tl.float32)
    row = ((batch * C + chunk) * H * P + h * P + p[:, None]) * N
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        rows, of_group = (t[:, None] < L) & (n[None, :] < N), h // HEADS * N + n
        added = load_rows(b + batch * b_b, t, of_group, rows, b_l)
        read = load_rows(c + batch * c_b, t, of_group, rows, c_l)
        start = tl.load(starts + row + n[None, :], mask=(p[:, None] < P) & (n[None, :] < N), other=0.0)
        product += tl.dot(read, tl.trans(added), input_precision=PRECISION)
        from_start += tl.dot(read, tl.trans(start), input_precision=PRECISION)
    inputs = load_rows(u + batch * u_b, t, h * P + p, inside, u_l)
    y = tl.dot(_decays(exponents, TOKENS) * product, used[:, None] * inputs, input_precision=PRECISION)
    y += tl.exp(tl.cumsum(exponents, 0))[:, None] * from_start
    store_outputs(
        out + batch * L * H * P, y, kept + batch * L * H * P, d, inputs, z + batch * z_b, t, h, p, P, inside,
        H * P, z_l, True, HAS_D, HAS_Z, KEEP,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _through_states(  # type: ignore[no-untyped-def]
    b, c, starts, ends, gb, gc, inputs, of_y, of_product, since_start, until_used, batch, t, h, p, b_l, c_l,
    L, H, P, N, HEADS, PRECISION: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Go over the states of a chunk, write the gradients of b and c, and return the sums over states.

    They are the products of c and b [tokens, tokens], the gradient of delta u from the states after the chunk, and what
    the decays from the start and to the end, of single tokens and of the whole chunk, get.
    """
    product = tl.zeros((TOKENS, TOKENS), tl.float32)
    of_scaled = tl.zeros((TOKENS, BP), tl.float32)  # of delta u
    of_since, of_until = tl.zeros((TOKENS,), tl.float32), tl.zeros((TOKENS,), tl.float32)
    of_total = 0.0
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        rows, held = (t[:, None] < L) & (n[None, :] < N), (p[:, None] < P) & (n[None, :] < N)
        added = load_rows(b, t, h // HEADS * N + n, rows, b_l)
        read = load_rows(c, t, h // HEADS * N + n, rows, c_l)
        start = tl.load(starts + n[None, :], mask=held, other=0.0)
        end = tl.load(ends + n[None, :], mask=held, other=0.0)
        product += tl.dot(read, tl.trans(added), input_precision=PRECISION)
        of_scaled += tl.dot(added, tl.trans(end), input_precision=PRECISION)
        of_read = since_start[:, None] * tl.dot(of_y, start, input_precision=PRECISION)
        of_added = until_used[:, None] * tl.dot(inputs, end, input_precision=PRECISION)
        of_since += tl.sum(of_read * read, 1)
        of_until += tl.sum(of_added * added, 1)
        of_total += tl.sum(tl.sum(start * end, 1), 0)
        of_read += tl.dot(of_product, added, input_precision=PRECISION)
        of_added += tl.dot(tl.trans(of_product), read, input_precision=PRECISION)
        at = ((batch * L + t[:, None]) * H + h) * N + n[None, :]
        tl.store(gc + at, of_read, mask=rows)
        tl.store(gb + at, of_added, mask=rows)
    return product, of_scaled, of_since, of_until, of_total


@triton.jit  # type: ignore[untyped-decorator]
def head_gradients(  # type: ignore[no-untyped-def]
    u, delta, b, c, z, gout, a, d, bias, y, starts, ends, gu, gdelta, gz, ga, gd, gb, gc,
    u_b, u_l, delta_b, delta_l, b_b, b_l, c_b, c_l, z_b, z_l, gout_b, gout_l, L, C, H, P, N, HEADS, least, most,
    SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr,
    PRECISION: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a chunk for one head, whose channels a program holds all.

    starts are the states before each chunk, [B, C, H, P, N], and ends the gradients of the states after each chunk. gu
    and gz are of each token, [B, L, H, P], and gdelta [B, L, H]; ga and gd of each chunk, [B, C, H]; gb and gc of each
    head, [B, L, H, N].
    """
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    h = tl.program_id(1)
    p = tl.arange(0, BP)
    k, j = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    t = chunk.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    columns, inside = h * P + p, (t[:, None] < L) & (p[None, :] < P)
    z += batch * z_b
    gout += batch * gout_b
    delta += batch * delta_b
    raw, free, used = _steps(delta, bias, t, h, t < L, delta_l, least, most, SOFTPLUS, HAS_BIAS)
    later = (t + 1 < L) & (t + 1 < (chunk + 1) * TOKENS)
    _, _, after = _steps(delta, bias, t + 1, h, later, delta_l, least, most, SOFTPLUS, HAS_BIAS)
    rate = tl.load(a + h)
    exponents = used * rate
    decays = _decays(exponents, TOKENS)
    since_start = tl.exp(tl.cumsum(exponents, 0))
    until_end = tl.exp(rate * tl.cumsum(after, 0, reverse=True))
    inputs = load_rows(u + batch * u_b, t, columns, inside, u_l)
    of_y = load_gated(gout, z, t, columns, inside, gout_l, z_l, HAS_Z)
    of_product = decays * used[None, :] * tl.dot(of_y, tl.trans(inputs), input_precision=PRECISION)
    row = ((batch * C + chunk) * H * P + columns[:, None]) * N
    product, of_scaled, of_since, of_until, of_total = _through_states(
        b + batch * b_b, c + batch * c_b, starts + row, ends + row, gb, gc, inputs, of_y, of_product, since_start,
        until_end * used, batch, t, h, p, b_l, c_l, L, H, P, N, HEADS, PRECISION, TOKENS, BP, BN,
    )  # fmt: skip
    of_scaled = until_end[:, None] * of_scaled
    of_scaled += tl.dot(tl.trans(decays * product), of_y, input_precision=PRECISION)
    # The exponent of token k is in the decays from each j < k to each i >= k, to the start and to the end.
    crossing = tl.cumsum(of_product * product, 0, reverse=True) + of_until[None, :]
    of_exponents = tl.sum(tl.where(j < k, crossing, 0.0), 1) + tl.cumsum(of_since, 0, reverse=True)
    of_exponents += tl.exp(tl.sum(exponents, 0)) * of_total
    of_used = rate * of_exponents + tl.sum(inputs * of_scaled, 1)
    place = (batch * C + chunk) * H + h
    tl.store(ga + place, tl.sum(of_exponents * used, 0))
    of_u = used[:, None] * of_scaled
    if HAS_D:
        of_u += tl.load(d + h) * of_y
        tl.store(gd + place, tl.sum(tl.sum(inputs * of_y, 1), 0))
    tl.store(gu + (batch * L + t[:, None]) * (H * P) + columns[None, :], of_u, mask=inside)
    of_raw = raw_gradient(of_used, raw, free, least, most, SOFTPLUS)
    tl.store(gdelta + (batch * L + t) * H + h, of_raw, mask=t < L)
    if HAS_Z:
        at = batch * L * H * P
        store_gate_gradient(gz + at, gout, z, y + at, t, columns, inside, H * P, gout_l, z_l)
