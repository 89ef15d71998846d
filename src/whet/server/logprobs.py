"""Compute log-probabilities from the model's own logits, before temperature, penalties and truncation.

Suffixes: R rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.server.request import TokenLogprobs


def token_logprobs(logits_RV: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return the log-probability of each row's token and of its `num_top` most probable ones, the most probable first.

    The logits are float32 [R, V]. If a token is the row's most probable one, both numbers are exactly equal: they are
    read from the same tensor.
    """
    logprobs_RV = torch.log_softmax(logits_RV, dim=1)
    chosen = logprobs_RV.gather(1, torch.tensor(token_ids, dtype=torch.int64)[:, None])[:, 0].tolist()
    top = logprobs_RV.topk(num_top, dim=1)
    rows = zip(token_ids, chosen, top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        TokenLogprobs(token_id, logprob, tuple(sorted(zip(ids, values, strict=True), key=_best_first)))
        for token_id, logprob, ids, values in rows
    ]


def _best_first(pair: tuple[int, float]) -> tuple[float, int]:
    token_id, logprob = pair
    return -logprob, token_id
