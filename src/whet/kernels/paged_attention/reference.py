"""Compute attention over a cache in blocks in torch, as the reference. Source: Kwon et al., 2023, arXiv:2309.06180.

Shape suffixes: T tokens, Q tokens of one sequence, C its context, N query heads, K key-value heads, H head width.
"""

import torch
from torch import Tensor

from whet.kernels.paged_attention.cache import BLOCK_SIZE, Batch, KvCache


def paged_attention_reference(q_TNH: Tensor, cache: KvCache, batch: Batch, softmax_scale: float, window: int) -> Tensor:
    """Return [T, N, H] in the type of q, which is also the type to compute in. Keys and values come from the cache."""
    out_TNH = torch.empty_like(q_TNH)
    starts, lengths = batch.query_start.tolist(), batch.context_len.tolist()
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        if rows.start == rows.stop:
            continue
        blocks = batch.block_tables[sequence, : -(-length // BLOCK_SIZE)].long()
        k_CKH, v_CKH = (x[:length].to(q_TNH.dtype) for x in cache.read(blocks))
        out_TNH[rows] = _attend(q_TNH[rows], k_CKH, v_CKH, softmax_scale, window)
    return out_TNH


def _attend(q_QNH: Tensor, k_CKH: Tensor, v_CKH: Tensor, softmax_scale: float, window: int) -> Tensor:
    """The queries are the last of the context; each sees itself and what is before it, within the window."""
    Q, C, group = len(q_QNH), len(k_CKH), q_QNH.shape[1] // k_CKH.shape[1]
    k_CNH, v_CNH = k_CKH.repeat_interleave(group, dim=1), v_CKH.repeat_interleave(group, dim=1)
    scores_NQC = torch.einsum("qnh,cnh->nqc", q_QNH, k_CNH) * softmax_scale
    keys_C = torch.arange(C, device=q_QNH.device)
    places_Q1 = torch.arange(C - Q, C, device=q_QNH.device)[:, None]
    seen_QC = keys_C <= places_Q1
    if window:
        seen_QC &= keys_C > places_Q1 - window
    weights_NQC = scores_NQC.masked_fill(~seen_QC, -torch.inf).softmax(dim=-1)
    return torch.einsum("nqc,cnh->qnh", weights_NQC, v_CNH)
