"""Compute scans in which each channel has rates of its own (Mamba-1) in Triton: kernels over chunks of tokens.

A program holds TOKENS x BP channels x BN states in registers. t are its tokens, p its channels, n its states. The first
axis of a grid is the sequence and its chunk; L, H, P, N are the problem's sizes, C its chunks, and HEADS the heads of a
group. See triton_parts.py for how the kernels follow each other.
"""

import triton
import triton.language as tl

from whet.kernels.selective_scan.triton_parts import (
    load_gated,
    load_rates,
    load_raw,
    load_rows,
    raw_gradient,
    step_sizes,
    store_gate_gradient,
    store_outputs,
)


@triton.jit
def _combine(decay, added, next_decay, next_added):  # type: ignore[no-untyped-def]
    """Apply one token after another: h = decay h + added."""
    return decay * next_decay, next_decay * added + next_added


@triton.jit  # type: ignore[untyped-decorator]
def _steps(  # type: ignore[no-untyped-def]
    delta, bias, t, h, p, P, inside, stride, least, most,
    PER_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Return step sizes [tokens, channels]: before softplus, before they are limited, and as they are used."""
    raw = load_raw(delta, bias, t, h, p, P, inside, stride, PER_HEAD, HAS_BIAS)
    free, used = step_sizes(raw, least, most, SOFTPLUS)
    return raw, free, tl.where(inside, used, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def diagonal_parts(  # type: ignore[no-untyped-def]
    v, w, z, delta, a, bias, parts, totals, v_b, v_l, w_b, w_l, z_b, z_l, delta_b, delta_l,
    L, C, H, P, N, HEADS, least, most,
    BACKWARD: tl.constexpr, PER_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_Z: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write what each chunk adds to a state of zeros, where v is u and w is b, and the sums of its step sizes.

    With BACKWARD, write what each chunk adds to the gradient of the state before it, where v is gout and w is c.
    """
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    blocks = tl.cdiv(P, BP)
    h = tl.program_id(1) // blocks
    p = tl.program_id(1) % blocks * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    t = chunk.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = (t[:, None] < L) & (p[None, :] < P)
    delta += batch * delta_b
    _, _, used = _steps(delta, bias, t, h, p, P, inside, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
    if BACKWARD:
        so_far = tl.cumsum(used, 0)
        value = load_gated(v + batch * v_b, z + batch * z_b, t, h * P + p, inside, v_l, z_l, HAS_Z)
    else:
        later = inside & (t[:, None] + 1 < L) & (t[:, None] + 1 < (chunk + 1) * TOKENS)
        _, _, after = _steps(delta, bias, t + 1, h, p, P, later, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
        so_far = tl.cumsum(after, 0, reverse=True)
        value = used * load_rows(v + batch * v_b, t, h * P + p, inside, v_l)
    total, row = tl.sum(used, 0), batch * C + chunk
    if PER_HEAD:
        tl.store(totals + row * H + h + p * 0, total, mask=p == 0)
    else:
        tl.store(totals + row * H * P + h * P + p, total, mask=p < P)
    weight = load_rows(w + batch * w_b, t, h // HEADS * N + n, (t[:, None] < L) & (n[None, :] < N), w_l)
    decay = tl.exp(load_rates(a, h, p, n, P, N, PER_HEAD)[None, :, :] * so_far[:, :, None])
    found = tl.sum(decay * value[:, :, None] * weight[:, None, :], 0)
    place = ((batch * C + chunk) * H * P + h * P + p[:, None]) * N + n[None, :]
    tl.store(parts + place, found, mask=(p[:, None] < P) & (n[None, :] < N))


@triton.jit  # type: ignore[untyped-decorator]
def diagonal_outputs(  # type: ignore[no-untyped-def]
    u, delta, b, c, z, a, d, bias, starts, out, kept, u_b, u_l, delta_b, delta_l, b_b, b_l, c_b, c_l, z_b, z_l,
    L, C, H, P, N, HEADS, least, most,
    PER_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr, KEEP: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the outputs of each chunk from the states before it."""
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    blocks = tl.cdiv(P, BP)
    h = tl.program_id(1) // blocks
    p = tl.program_id(1) % blocks * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    i = tl.arange(0, TOKENS)
    t = chunk.to(tl.int64) * TOKENS + i
    inside = (t[:, None] < L) & (p[None, :] < P)
    delta += batch * delta_b
    _, _, used = _steps(delta, bias, t, h, p, P, inside, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
    inputs = load_rows(u + batch * u_b, t, h * P + p, inside, u_l)
    of_group, rows = h // HEADS * N + n, (t[:, None] < L) & (n[None, :] < N)
    added = load_rows(b + batch * b_b, t, of_group, rows, b_l)
    read = load_rows(c + batch * c_b, t, of_group, rows, c_l)
    place = ((batch * C + chunk) * H * P + h * P + p[:, None]) * N + n[None, :]
    start = tl.load(starts + place, mask=(p[:, None] < P) & (n[None, :] < N), other=0.0)
    decay = tl.exp(load_rates(a, h, p, n, P, N, PER_HEAD)[None, :, :] * used[:, :, None])
    change = (used * inputs)[:, :, None] * added[:, None, :]
    change += tl.where(i[:, None, None] == 0, decay * start[None, :, :], 0.0)
    _, states = tl.associative_scan((decay, change), 0, _combine)
    y = tl.sum(states * read[:, None, :], 2)
    store_outputs(
        out + batch * L * H * P, y, kept + batch * L * H * P, d, inputs, z + batch * z_b, t, h, p, P, inside,
        H * P, z_l, PER_HEAD, HAS_D, HAS_Z, KEEP,
    )  # fmt: skip


@triton.jit
def _states_before(rates, used, inputs, added, start, i):  # type: ignore[no-untyped-def]
    """Return what the tokens before each token made of the state at the start of the chunk.

    Step sizes, inputs and what they add are those of the token before, and zeros for the first one.
    """
    change = (used * inputs)[:, :, None] * added[:, None, :]
    change += tl.where(i[:, None, None] == 0, start[None, :, :], 0.0)
    _, before = tl.associative_scan((tl.exp(rates * used[:, :, None]), change), 0, _combine)
    return before


@triton.jit  # type: ignore[untyped-decorator]
def _gradients_after(rates, used, of_y, read, end, i, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradients of the states after each token, from the tokens after it and from the state at the end.

    Step sizes are those of the token after, and zeros for the last one.
    """
    change = of_y[:, :, None] * read[:, None, :] + tl.where(i[:, None, None] == TOKENS - 1, end[None, :, :], 0.0)
    _, after = tl.associative_scan((tl.exp(rates * used[:, :, None]), change), 0, _combine, reverse=True)
    return after


@triton.jit  # type: ignore[untyped-decorator]
def _block(number, group, blocks, P, HEADS, BP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the head and the channels of a block of a group. The channels are P where there is no such block."""
    p = number % blocks * BP + tl.arange(0, BP)
    return group * HEADS + number // blocks, tl.where(number < HEADS * blocks, p, P)


@triton.jit
def _of_channels(g, before, rates, used, inputs, added, of_y):  # type: ignore[no-untyped-def]
    """Return what some channels add to the gradients of b and c, and the gradients of delta u, delta and the rates."""
    kept = tl.exp(rates * used[:, :, None]) * before
    scaled = used * inputs
    to_c = tl.sum((kept + scaled[:, :, None] * added[:, None, :]) * of_y[:, :, None], 1)
    of_scaled = tl.sum(g * added[:, None, :], 2)
    exponent = g * kept
    of_used = tl.sum(exponent * rates, 2) + of_scaled * inputs
    return tl.sum(g * scaled[:, :, None], 1), to_c, of_scaled, of_used, tl.sum(exponent * used[:, :, None], 0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_skipped(of_u, gd, d, of_y, inputs, h, p, P, columns, PER_HEAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradient of the inputs with what passes the scan directly, and write the chunk's part of that of d."""
    column = columns
    if PER_HEAD:
        column = h + p * 0
    tl.store(gd + columns, tl.sum(of_y * inputs, 0), mask=p < P)
    return of_u + tl.load(d + column, mask=p < P, other=0.0)[None, :] * of_y


@triton.jit  # type: ignore[untyped-decorator]
def diagonal_gradients(  # type: ignore[no-untyped-def]
    u, delta, b, c, z, gout, a, d, bias, y, starts, ends, gu, gdelta, gz, ga, gd, gb, gc,
    u_b, u_l, delta_b, delta_l, b_b, b_l, c_b, c_l, z_b, z_l, gout_b, gout_l, L, C, H, P, N, HEADS, least, most,
    PER_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr, BUNDLE: tl.constexpr, TOKENS: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a chunk for BUNDLE blocks of channels of one group, and sum those of b and c over them.

    starts are the states before each chunk, [B, C, H, P, N], and ends the gradients of the states after each chunk. gu,
    gdelta and gz are of each token, [B, L, H, P]; ga and gd of each chunk, [B, C, H, P, N] and [B, C, H, P]; gb and gc
    of each bundle, [B, L, G, bundles, N].
    """
    batch, chunk = (tl.program_id(0) // C).to(tl.int64), tl.program_id(0) % C
    blocks = tl.cdiv(P, BP)
    bundles = tl.cdiv(HEADS * blocks, BUNDLE)
    group, bundle = tl.program_id(1) // bundles, tl.program_id(1) % bundles
    n, i = tl.arange(0, BN), tl.arange(0, TOKENS)
    t = chunk.to(tl.int64) * TOKENS + i
    in_sequence = t[:, None] < L
    earlier, later = in_sequence & (i[:, None] > 0), (t[:, None] + 1 < L) & (i[:, None] + 1 < TOKENS)
    u, delta, z, gout = u + batch * u_b, delta + batch * delta_b, z + batch * z_b, gout + batch * gout_b
    rows, row = batch * L * H * P, (batch * C + chunk) * H * P
    gu, gdelta, gz, y = gu + rows, gdelta + rows, gz + rows, y + rows
    states = n[None, :] < N
    added = load_rows(b + batch * b_b, t, group * N + n, in_sequence & states, b_l)
    added_before = load_rows(b + batch * b_b, t - 1, group * N + n, earlier & states, b_l)
    read = load_rows(c + batch * c_b, t, group * N + n, in_sequence & states, c_l)
    of_b, of_c = tl.zeros((TOKENS, BN), tl.float32), tl.zeros((TOKENS, BN), tl.float32)
    for k in range(0, BUNDLE):
        h, p = _block(bundle * BUNDLE + k, group, blocks, P, HEADS, BP)
        channels, columns = p[None, :] < P, h * P + p
        inside = in_sequence & channels
        rates = load_rates(a, h, p, n, P, N, PER_HEAD)[None, :, :]
        place, held = (row + columns[:, None]) * N + n[None, :], (p[:, None] < P) & states
        mask = earlier & channels
        _, _, used = _steps(delta, bias, t - 1, h, p, P, mask, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
        start = tl.load(starts + place, mask=held, other=0.0)
        before = _states_before(rates, used, load_rows(u, t - 1, columns, mask, u_l), added_before, start, i)
        mask = later & channels
        _, _, used = _steps(delta, bias, t + 1, h, p, P, mask, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
        of_y = load_gated(gout, z, t, columns, inside, gout_l, z_l, HAS_Z)
        g = _gradients_after(rates, used, of_y, read, tl.load(ends + place, mask=held, other=0.0), i, TOKENS)
        raw, free, used = _steps(delta, bias, t, h, p, P, inside, delta_l, least, most, PER_HEAD, SOFTPLUS, HAS_BIAS)
        inputs = load_rows(u, t, columns, inside, u_l)
        to_b, to_c, of_scaled, of_used, of_rates = _of_channels(g, before, rates, used, inputs, added, of_y)
        of_b += to_b
        of_c += to_c
        tl.store(ga + place, of_rates, mask=held)
        of_u = of_scaled * used
        if HAS_D:
            of_u = _add_skipped(of_u, gd + row, d, of_y, inputs, h, p, P, columns, PER_HEAD)
        at = t[:, None] * (H * P) + columns[None, :]
        tl.store(gu + at, of_u, mask=inside)
        tl.store(gdelta + at, raw_gradient(of_used, raw, free, least, most, SOFTPLUS), mask=inside)
        if HAS_Z:
            store_gate_gradient(gz, gout, z, y, t, columns, inside, H * P, gout_l, z_l)
    at = (((batch * L + t[:, None]) * (H // HEADS) + group) * bundles + bundle) * N + n[None, :]
    tl.store(gb + at, of_b, mask=in_sequence & states)
    tl.store(gc + at, of_c, mask=in_sequence & states)
