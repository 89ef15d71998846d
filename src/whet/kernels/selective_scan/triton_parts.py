"""Share code between the Triton kernels of selective scans: step sizes, gates, and how chunks hand on their states.

Both forms of the scan divide the tokens into chunks. Each chunk first computes what it adds to a state of zeros. Then
one kernel goes through the chunks in order, and the last one computes all chunks at once from the states before them.
Gradients go the same way backwards. Sources: Dao and Gu, 2024, arXiv:2405.21060, section 6; Blelloch, 1990,
CMU-CS-90-190, for the scan of pairs.

Decays are exponentials of sums of step sizes times a rate. No sum is a difference of two sums, which would round; no
decay is divided by another one. Everything is computed in float32.
"""

import triton
import triton.language as tl


@triton.jit
def softplus(x):  # type: ignore[no-untyped-def]
    """Return log(1 + exp(x)), with the relative error of the logarithm for small results too."""
    y = tl.exp(-tl.abs(x))
    one = 1.0 + y
    # log(one) has the error of rounding 1 + y, which the quotient takes back (Kahan's log1p).
    rest = tl.where(one == 1.0, y, tl.log(one) * (y / tl.where(one == 1.0, 1.0, one - 1.0)))
    return tl.maximum(x, 0.0) + rest


@triton.jit  # type: ignore[untyped-decorator]
def step_sizes(raw, least, most, SOFTPLUS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the step sizes before and after they are limited. NaN stays NaN."""
    free = raw
    if SOFTPLUS:
        free = softplus(raw)
    used = tl.where(free < least, least, free)
    return free, tl.where(used > most, most, used)


@triton.jit  # type: ignore[untyped-decorator]
def raw_gradient(gradient, raw, free, least, most, SOFTPLUS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradient of the step sizes before softplus from that of the limited ones."""
    gradient = tl.where((free < least) | (free > most), 0.0, gradient)
    if SOFTPLUS:
        gradient = gradient * tl.sigmoid(raw)
    return gradient


@triton.jit  # type: ignore[untyped-decorator]
def load_raw(delta, bias, t, h, p, P, mask, L_STRIDE, PER_HEAD: tl.constexpr, HAS_BIAS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the step sizes before softplus of tokens t and channels p of a head, [tokens, channels]."""
    column = h * P + p
    if PER_HEAD:
        column = h + p * 0
    raw = tl.load(delta + t[:, None] * L_STRIDE + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        raw += tl.load(bias + column[None, :], mask=mask, other=0.0)
    return raw


@triton.jit  # type: ignore[untyped-decorator]
def load_rates(a, h, p, n, P, N, PER_HEAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the rates of channels p of a head and states n, [channels, states]; 0 beyond the last ones."""
    inside = (p[:, None] < P) & (n[None, :] < N)
    place = (h * P + p[:, None]) * N + n[None, :]
    if PER_HEAD:
        place = h + place * 0
    return tl.load(a + place, mask=inside, other=0.0)


@triton.jit
def load_rows(x, t, columns, mask, L_STRIDE):  # type: ignore[no-untyped-def]
    """Return numbers of a sequence's rows in float32, [tokens, columns]; 0 where the mask is off."""
    return tl.load(x + t[:, None] * L_STRIDE + columns[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def load_gated(gout, z, t, columns, mask, GOUT_STRIDE, Z_STRIDE, HAS_Z: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradient of what goes into the gate, [tokens, columns]."""
    gradient = load_rows(gout, t, columns, mask, GOUT_STRIDE)
    if HAS_Z:
        gate = load_rows(z, t, columns, mask, Z_STRIDE)
        gradient = gradient * gate * tl.sigmoid(gate)
    return gradient


@triton.jit
def store_gate_gradient(gz, gout, z, y, t, columns, mask, WIDTH, GOUT_STRIDE, Z_STRIDE):  # type: ignore[no-untyped-def]
    """Write the gradient of the gate. y is what went into it; y and gz have rows of WIDTH numbers."""
    gradient = load_rows(gout, t, columns, mask, GOUT_STRIDE)
    gate = load_rows(z, t, columns, mask, Z_STRIDE)
    share = tl.sigmoid(gate)
    found = gradient * load_rows(y, t, columns, mask, WIDTH) * share * (1.0 + gate * (1.0 - share))
    tl.store(gz + t[:, None] * WIDTH + columns[None, :], found, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def store_outputs(  # type: ignore[no-untyped-def]
    out, y, kept, d, u, z, t, h, p, P, mask, WIDTH, Z_STRIDE,
    PER_HEAD: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Write the outputs for y, what the states give, [tokens, channels], and y with d u before the gate if wanted."""
    columns = h * P + p
    if HAS_D:
        column = columns
        if PER_HEAD:
            column = h + p * 0
        y += tl.load(d + column, mask=p < P, other=0.0)[None, :] * u
    place = t[:, None] * WIDTH + columns[None, :]
    if KEEP:
        tl.store(kept + place, y, mask=mask)
    if HAS_Z:
        gate = load_rows(z, t, columns, mask, Z_STRIDE)
        y = y * gate * tl.sigmoid(gate)
    tl.store(out + place, y.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def hand_on(  # type: ignore[no-untyped-def]
    parts, totals, a, first, last, C, H, P, N,
    REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr, PER_HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn what each chunk adds to a state of zeros into the state before each chunk, in its place.

    With REVERSE, the chunks are taken from the last one on: gradients of the states after each chunk. parts are
    [B, C, H, P, N]; totals, the sums of the chunks' step sizes, [B, C, H, P], or [B, C, H] with PER_HEAD; the rates a
    [H, P, N], or [H] with PER_HEAD. first [B, H, P, N] is the state to begin with, where HAS_FIRST. last [B, H, P, N]
    gets the state in the end.
    """
    batch = tl.program_id(0).to(tl.int64)
    size = H * P * N
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < size
    channel = element // N
    of_total, of_rate, num_totals = channel, element, H * P
    if PER_HEAD:
        of_total = channel // P
        of_rate = of_total
        num_totals = H
    rate = tl.load(a + of_rate, mask=inside, other=0.0)
    state = tl.zeros((BLOCK,), tl.float32)
    if HAS_FIRST:
        state = tl.load(first + batch * size + element, mask=inside, other=0.0)
    for i in range(0, C):
        chunk = i
        if REVERSE:
            chunk = C - 1 - i
        row = batch * C + chunk
        total = tl.load(totals + row * num_totals + of_total, mask=inside, other=0.0)
        part = tl.load(parts + row * size + element, mask=inside, other=0.0)
        tl.store(parts + row * size + element, state, mask=inside)
        state = tl.exp(rate * total) * state + part
    tl.store(last + batch * size + element, state, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def step(  # type: ignore[no-untyped-def]
    u, delta, b, c, z, a, d, bias, initial, out, last, u_b, delta_b, b_b, c_b, z_b, H, P, N, HEADS, least, most,
    PER_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr,
    HAS_INITIAL: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Advance the states of BP channels by one token. HEADS is the number of heads of a group."""
    batch = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(P, BP)
    h = tl.program_id(1) // blocks
    p = tl.program_id(1) % blocks * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    t = tl.arange(0, 1)
    inside = (t[:, None] < 1) & (p[None, :] < P)
    raw = load_raw(delta + batch * delta_b, bias, t, h, p, P, inside, 0, PER_HEAD, HAS_BIAS)
    _, used = step_sizes(raw, least, most, SOFTPLUS)
    inputs = load_rows(u + batch * u_b, t, h * P + p, inside, 0)
    of_group = h // HEADS * N + n
    added = tl.load(b + batch * b_b + of_group, mask=n < N, other=0.0).to(tl.float32)
    read = tl.load(c + batch * c_b + of_group, mask=n < N, other=0.0).to(tl.float32)
    place = (batch * H * P + h * P + p[:, None]) * N + n[None, :]
    held = (p[:, None] < P) & (n[None, :] < N)
    delta_p = tl.sum(used, 0)
    state = (delta_p * tl.sum(inputs, 0))[:, None] * added[None, :]
    if HAS_INITIAL:
        decay = tl.exp(load_rates(a, h, p, n, P, N, PER_HEAD) * delta_p[:, None])
        state += decay * tl.load(initial + place, mask=held, other=0.0)
    tl.store(last + place, state, mask=held)
    y = tl.sum(state * read[None, :], 1)[None, :]
    store_outputs(
        out + batch * H * P, y, out, d, inputs, z + batch * z_b, t, h, p, P, inside, 0, 0,
        PER_HEAD, HAS_D, HAS_Z, False,
    )  # fmt: skip
