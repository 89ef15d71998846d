"""Compute attention in bfloat16 on a CPU as batches of products and a softmax, with a backward pass.

Attention takes 4 T S D operations for each head, and 8 T S D more in backward. PyTorch's fused kernel for CPUs computes
its backward in bfloat16 at a fraction of the speed of plain products, which oneDNN computes with the processor's own
instructions. Here queries and heads are taken in chunks whose scores stay in cache. The scores are rounded to bfloat16,
as they are wherever attention is written by hand inside autocast; the fused kernel keeps them in float32.

Causal attention leaves out the keys after a block of queries. The probabilities are kept for backward, or computed
again there.

Shape suffixes: B batch, H heads, T queries, S keys, D width, N = B H, C some of these, J queries of a block.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.techniques.mechanisms.module_class import AddedForward
from whet.techniques.mechanisms.packing.attention_calls import FUSED, InPlaceOfFused, bias_of, in_autocast

BLOCK = 256  # queries of a block of causal attention
_CHUNK_BYTES = 2**20  # of scores


class _Chunk(NamedTuple):
    """Describe what is computed at once: some heads, a block of queries, and the keys that it sees."""

    heads: slice
    queries: slice
    num_keys: int
    bias: Tensor | None  # [1 or C, J, num_keys]
    kept: slice  # its probabilities among all that are kept


def num_kept(num_heads: int, num_queries: int, num_keys: int, *, is_causal: bool) -> int:
    """Return how many probabilities the heads of all rows have: those of the keys that each block of queries sees."""
    if not is_causal:
        return num_heads * num_queries * num_keys
    whole = num_queries // BLOCK
    return num_heads * (BLOCK * BLOCK * whole * (whole + 1) // 2 + (num_queries - whole * BLOCK) * num_queries)


def _chunks(q_NTD: Tensor, num_keys: int, bias: Tensor | None, num_rows: int, is_causal: bool) -> Iterator[_Chunk]:
    """Yield the chunks in order. A bias [1, 1, T, S], or none, lets a chunk reach over several rows."""
    N, T, _ = q_NTD.shape
    kept = 0
    is_shared = bias is None or bias.shape[:2] == (1, 1)
    num_heads = N if is_shared else N // num_rows  # whose scores may be computed at once
    for start in range(0, T, BLOCK if is_causal else max(T, 1)):
        stop = min(T, start + BLOCK) if is_causal else T
        seen = stop if is_causal else num_keys
        hidden = _causal(start, stop, q_NTD) if is_causal else None
        size = max(1, _CHUNK_BYTES // max(1, (stop - start) * seen * q_NTD.element_size()))
        for first in range(0, N, num_heads):
            row = None if bias is None else bias[min(first // num_heads, len(bias) - 1)]
            for head in range(0, num_heads, size):
                end = min(num_heads, head + size)
                one = row if row is None or len(row) == 1 else row[head:end]
                num = (end - head) * (stop - start) * seen
                heads = slice(first + head, first + end)
                yield _Chunk(heads, slice(start, stop), seen, hidden if is_causal else one, slice(kept, kept + num))
                kept += num


def _causal(start: int, stop: int, like: Tensor) -> Tensor:
    """Return what hides later keys from a block of queries: [1, J, stop]."""
    hidden = torch.ones(stop - start, stop, dtype=torch.bool, device=like.device).triu(start + 1)
    return like.new_zeros(1, stop - start, stop).masked_fill_(hidden, -math.inf)


def _probabilities(q_NTD: Tensor, k_NSD: Tensor, chunk: _Chunk, scale: float, out: Tensor | None) -> Tensor:
    """Return the softmax of a chunk's scores: [C, J, keys]. A query that sees nothing has zeros."""
    q, k = q_NTD[chunk.heads, chunk.queries], k_NSD[chunk.heads, : chunk.num_keys].transpose(1, 2)
    shape = (q.shape[0], q.shape[1], chunk.num_keys)
    bias = q.new_zeros(1) if chunk.bias is None else chunk.bias
    scores = torch.baddbmm(bias, q, k, beta=0 if chunk.bias is None else 1, alpha=scale)
    if out is None:
        found = torch.softmax(scores, -1)
    else:
        found = out[chunk.kept].view(shape)
        torch.softmax(scores, -1, out=found)
    if chunk.bias is not None and (blind := (chunk.bias == -math.inf).all(-1, keepdim=True)).any():
        found.masked_fill_(blind, 0)
    return found


@torch.library.custom_op("whet::product_attention", mutates_args=(), device_types="cpu")
def product_attention(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, mask: Tensor | None, is_causal: bool, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return attention as torch.nn.functional.scaled_dot_product_attention does, and the probabilities.

    Args:
        v_BHSD: Values, as wide as the keys.
        mask: What is added to the scores, or True where a key is seen; it broadcasts to [B, H, T, S]. None for none.
        is_causal: Whether queries see no later keys; then T is S, and there is no mask.
        scale: What products are multiplied with.
        keep: Whether the probabilities are kept for backward.

    Returns:
        The attended values [B, H, T, D], and the probabilities in one dimension; none where they are not kept.
    """
    B, H, T, D = q_BHTD.shape
    q, k, v = (x.reshape(B * H, -1, D) for x in (q_BHTD, k_BHSD, v_BHSD))
    out_NTD = torch.empty_like(q, memory_format=torch.contiguous_format)
    kept = q.new_empty(num_kept(B * H, T, k.shape[1], is_causal=is_causal) if keep else 0)
    for chunk in _chunks(q, k.shape[1], bias_of(mask, q), B, is_causal):
        p = _probabilities(q, k, chunk, scale, kept if keep else None)
        out_NTD[chunk.heads, chunk.queries] = torch.bmm(p, v[chunk.heads, : chunk.num_keys])
    return out_NTD.view(B, H, T, D), kept


@torch.library.custom_op("whet::product_attention_backward", mutates_args=(), device_types="cpu")
def product_attention_backward(
    gradient_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values; see product_attention.

    Arguments that are not listed are as forward got them.

    Args:
        gradient_BHTD: The gradient of the attended values.
        kept: The probabilities, or nothing, to compute them again.
    """
    B, H, T, D = q_BHTD.shape
    q, k, v, g = (x.reshape(B * H, -1, D) for x in (q_BHTD, k_BHSD, v_BHSD, gradient_BHTD))
    # Several blocks add to the gradients of the same keys: in float32, so that the sum is rounded once.
    wide = torch.float32 if is_causal and T > BLOCK else q.dtype
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = (torch.zeros(x.shape, dtype=wide) for x in (k, v))
    for chunk in _chunks(q, k.shape[1], bias_of(mask, q), B, is_causal):
        keys = (chunk.heads, slice(0, chunk.num_keys))
        g_CJD, q_CJD = g[chunk.heads, chunk.queries], q[chunk.heads, chunk.queries]
        shape = (q_CJD.shape[0], q_CJD.shape[1], chunk.num_keys)
        p = kept[chunk.kept].view(shape) if kept.numel() else _probabilities(q, k, chunk, scale, None)
        dp = torch.bmm(g_CJD, v[keys].transpose(1, 2))
        ds = torch._softmax_backward_data(dp, p, -1, p.dtype).mul_(scale)
        dq[chunk.heads, chunk.queries] = torch.bmm(ds, k[keys])
        dk[keys] += torch.bmm(ds.transpose(1, 2), q_CJD)
        dv[keys] += torch.bmm(p.transpose(1, 2), g_CJD)
    shaped = (x.to(q.dtype).view(B, H, -1, D) for x in (dq, dk, dv))
    return tuple(shaped)  # type: ignore[return-value]


@product_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float, keep: bool) -> Any:
    B, H, T, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(num_kept(B * H, T, k.shape[2], is_causal=is_causal) if keep else 0)


@product_attention_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.is_causal, ctx.scale, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, mask, output[1])


def _backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
    q, k, v, mask, kept = ctx.saved_tensors
    found = product_attention_backward(gradient, q, k, v, mask, kept, ctx.is_causal, ctx.scale)
    return *found, None, None, None, None


product_attention.register_autograd(_backward, setup_context=_save)


def _attended(
    keep: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention by products in bfloat16; by PyTorch's kernel for all else."""
    query, key, value = in_autocast(query, key, value)
    is_plain = (
        query.dtype is torch.bfloat16
        and query.dtype == key.dtype == value.dtype
        and query.device.type == "cpu"
        and query.dim() == 4
        and key.shape == value.shape
        and query.shape[:2] == key.shape[:2]
        and query.shape[-1] == key.shape[-1]
        and dropout_p == 0.0
        and (attn_mask is None or not attn_mask.requires_grad)
        and not (is_causal and (attn_mask is not None or query.shape[2] != key.shape[2]))
    )
    if not is_plain or not torch.is_grad_enabled():
        return FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(query.dtype)
    found: Tensor = product_attention(query, key, value, attn_mask, is_causal, factor, keep)[0]
    return found


class AttentionByProducts(AddedForward):
    """Run forward with attention by products, whose probabilities are kept for backward."""

    keeps_probabilities = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with InPlaceOfFused(partial(_attended, self.keeps_probabilities)):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class AttentionComputedAgain(AttentionByProducts):
    """Run forward with attention by products, whose probabilities are computed again in backward."""

    keeps_probabilities = False
