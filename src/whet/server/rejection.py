"""Rejection sampling of drafts: the output is distributed as if there were none.

A draft x drawn from q is accepted with probability min(1, p(x) / q(x)). The first that is not is replaced by a token
drawn from max(p - q, 0), renormalised, and the drafts after it are dropped. After all of them one more is drawn from p.
Source: Leviathan et al., 2023, arXiv:2211.17192; Chen et al., 2023, arXiv:2302.01318.

Suffixes: K drafts, V vocabulary.
"""

import torch
from torch import Tensor


def verify(p_KV: Tensor, q_KV: Tensor, drafts: list[int], accept: list[float], residual: list[float]) -> list[int]:
    """The drafts that are accepted and, where one is not, the token that takes its place.

    p_KV, q_KV: float64, what the model and the draft draw from at each draft's place; drafts were drawn from q.
    accept, residual: numbers of [0, 1), one a draft. Returns as many tokens as there are drafts if all are accepted.
    """
    tokens: list[int] = []
    for k, draft in enumerate(drafts):
        if accept[k] * float(q_KV[k, draft]) < float(p_KV[k, draft]):
            tokens.append(draft)
            continue
        rest_V = (p_KV[k] - q_KV[k]).clamp_min(0)
        if not float(rest_V.sum()):  # p and q are equal but for rounding
            rest_V = p_KV[k]
        return [*tokens, inverse(rest_V, residual[k])]
    return tokens


def inverse(weights_V: Tensor, uniform: float) -> int:
    """The token at which the weights' running sum first is above `uniform` of the whole sum: one drawn by weight."""
    cumulative_V = weights_V.cumsum(0)
    place = int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1], right=True))
    if place < len(weights_V):
        return place
    return int(torch.nonzero(weights_V)[-1])
