"""Compute selective scans in other forms than token by token, in torch: they give the same numbers but for rounding.

The sequential form (whet.kernels.selective_scan.reference) defines the numbers, and whet's kernels use it. The parallel
form combines neighbours over growing distances (Hillis and Steele, 1986), since pairs (a, b) of h -> a h + b combine
associatively. The chunked form does so within chunks, and hands states from chunk to chunk. The dual form of Mamba-2
computes a chunk by matrix products (Dao and Gu, 2024, arXiv:2405.21060, section 6). Nothing is divided by a product of
decays, which may be 0, and differences of exponents are clamped to at most 0.

Shape suffixes: B batch, L tokens, Q tokens of a chunk, H heads, P channels of a head, N states.
"""

from dataclasses import replace

import torch
from torch import Tensor

from whet.kernels.selective_scan.reference import ScanInputs, finished, outputs_of


def scan_parallel(x: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return out [B, L, H, P] and the last states [B, H, P, N], by doubling distances in log2(L) steps."""
    states_LBHPN = _states_parallel(x)
    return outputs_of(x, states_LBHPN)[0], states_LBHPN[-1]


def _states_parallel(x: ScanInputs) -> Tensor:
    """Return the states after each token, [L, B, H, P, N]."""
    _, delta = x.steps()
    added = x.of_heads(x.B_BLGN)[:, :, :, None] * (delta * x.u_BLHP.to(x.wide))[..., None]
    decay = torch.exp(delta[..., None] * x.A_HqM).expand_as(added)
    b, a = added.transpose(0, 1), decay.transpose(0, 1)
    b = torch.cat((b[:1] + a[:1] * x.start(), b[1:]))
    distance = 1
    while distance < len(b):
        b = torch.cat((b[:distance], b[distance:] + a[distance:] * b[:-distance]))
        a = torch.cat((a[:distance], a[distance:] * a[:-distance]))
        distance *= 2
    return b


def part_of(x: ScanInputs, begin: int, end: int, initial_BHPN: Tensor | None) -> ScanInputs:
    """Return the tokens begin to end - 1 as a scan of their own, from these states."""
    z = None if x.z_BLHP is None else x.z_BLHP[:, begin:end]
    u, delta, B, C = (part[:, begin:end] for part in (x.u_BLHP, x.delta_BLHq, x.B_BLGN, x.C_BLGN))
    return replace(x, u_BLHP=u, delta_BLHq=delta, B_BLGN=B, C_BLGN=C, z_BLHP=z, initial_BHPN=initial_BHPN)


def scan_chunked(x: ScanInputs, chunk: int) -> tuple[Tensor, Tensor]:
    """Return out [B, L, H, P] and the last states [B, H, P, N]: chunks one after the other, each in parallel."""
    outputs, last = [], x.initial_BHPN
    for begin in range(0, x.u_BLHP.shape[1], chunk):
        out, last = scan_parallel(part_of(x, begin, begin + chunk, last))
        outputs.append(out)
    assert last is not None
    return torch.cat(outputs, dim=1), last


def ssd_chunked(x: ScanInputs, chunk: int) -> tuple[Tensor, Tensor]:
    """Return out [B, L, H, P] and the last states [B, H, P, N] of Mamba-2, by matrix products of a chunk's tokens."""
    outputs, state = [], x.start()
    for begin in range(0, x.u_BLHP.shape[1], chunk):
        part = part_of(x, begin, begin + chunk, None)
        _, delta_BQH1 = part.steps()
        exponents_BQH = (delta_BQH1[..., 0] * x.A_HqM[:, 0, 0]).cumsum(1)
        du_BQHP = delta_BQH1 * part.u_BLHP.to(x.wide)
        B_BQHN, C_BQHN = part.of_heads(part.B_BLGN), part.of_heads(part.C_BLGN)
        # How much of token k is left at token q: masked before exp, where it would overflow.
        left = exponents_BQH[:, :, None] - exponents_BQH[:, None]
        later = torch.ones(left.shape[1:3], dtype=torch.bool, device=left.device).tril()[None, :, :, None]
        left = left.masked_fill(~later, -torch.inf).clamp(max=0).exp()
        scores = torch.einsum("bqhn,bkhn->bqkh", C_BQHN, B_BQHN) * left
        y = torch.einsum("bqkh,bkhp->bqhp", scores, du_BQHP)
        y = y + torch.einsum("bqhn,bhpn->bqhp", C_BQHN * exponents_BQH.exp()[..., None], state)
        to_end = (exponents_BQH[:, -1:] - exponents_BQH).clamp(max=0).exp()
        state = state * exponents_BQH[:, -1, :, None, None].exp()
        state = state + torch.einsum("bkhn,bkhp->bhpn", B_BQHN * to_end[..., None], du_BQHP)
        outputs.append(finished(part, y)[0])
    return torch.cat(outputs, dim=1), state
