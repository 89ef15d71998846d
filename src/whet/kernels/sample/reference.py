"""Compute the sampling operator in float64 with a sorted row, as the reference.

The rule: weights are e^((logit - largest) / temperature). Tokens are sorted by their logits, the largest first, and
equal ones by id. Three filters apply in turn. min-p keeps the tokens whose weight is at least min_p. top-k keeps the
first top_k of them. top-p keeps the first tokens until their weights reach top_p of the sum of the weights that are
left, including the token that reaches it. The token drawn is the first at which the cumulative weight of the tokens
that are left exceeds uniform x their sum. Temperature 0 takes the first token.

The order (temperature, min-p, top-k, top-p) is vLLM's (v1/sample/sampler.py). transformers applies min-p last, which
differs only where top-p then sees fewer tokens. A row with NaN or +inf, or with no logit above -inf, has no token: -1.
"""

import torch
from torch import Tensor


def sample_reference(
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor, uniform_R: Tensor
) -> Tensor:
    """Return the token of each row, int64 [R]."""
    columns = (temperature_R, top_k_R, top_p_R, min_p_R, uniform_R)
    rows = zip(logits_RV, *(column.tolist() for column in columns), strict=True)
    return torch.tensor([_row(*row) for row in rows], dtype=torch.int64, device=logits_RV.device)


def _row(logits_V: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    logits_V = logits_V.double()
    largest = logits_V.max()
    if not bool(largest.isfinite()):  # a NaN is the largest
        return -1
    order_V = logits_V.argsort(descending=True, stable=True)
    if not temperature > 0:
        return int(order_V[0])
    weight_V = ((logits_V[order_V] - largest) / temperature).exp()
    weight_V = weight_V[weight_V >= min(min_p, 1.0)]
    if top_k > 0:
        weight_V = weight_V[:top_k]
    cumulative_V = weight_V.cumsum(0)
    if top_p < 1:
        count = int((cumulative_V < top_p * cumulative_V[-1]).sum()) + 1
        cumulative_V = cumulative_V[:count]
    place = int((cumulative_V <= uniform * cumulative_V[-1]).sum())
    return int(order_V[min(place, len(cumulative_V) - 1)])
