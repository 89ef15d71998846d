"""Put attention within documents in the place of PyTorch's attention, inside a module's forward.

Only calls whose mask does nothing but keep the documents of packed rows apart are answered. All others stay PyTorch's.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.techniques.mechanisms.module_class import AddedForward
from whet.techniques.mechanisms.packing.attention_calls import FUSED, InPlaceOfFused, in_autocast
from whet.techniques.mechanisms.packing.packed_attention import FLEX_BLOCK, Documents, flex_attention
from whet.techniques.mechanisms.packing.packed_masks import KNOWN, SEEN, may_be_packed
from whet.techniques.mechanisms.packing.packed_operator import (
    attention_within_documents,
    documents_in_mask,
    kind_of_documents,
)
from whet.techniques.mechanisms.packing.unfused_attention import AttentionByProducts


class _Way(NamedTuple):
    """Say how a document is computed."""

    products: bool  # in bfloat16 on a CPU, as products and a softmax
    keep: bool  # whether their probabilities are kept for backward
    block_size: int  # of FlexAttention, on a GPU


def _attended(
    way: _Way,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention within documents; by whatever else answers the call where the mask is another one."""
    found = None
    if attn_mask is not None and may_be_packed(query, key, value, attn_mask, dropout_p, is_causal=is_causal):
        q, k, v = in_autocast(query, key, value)
        if q.dtype == k.dtype == v.dtype and (q.shape[1] == k.shape[1] or enable_gqa):
            found = _packed(way, q, k, v, attn_mask, q.shape[-1] ** -0.5 if scale is None else scale)
    if found is not None:
        return found
    return FUSED(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _packed(way: _Way, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor | None:
    """Return attention within the documents that a mask keeps apart; None where it keeps none apart."""
    if not torch.compiler.is_compiling():
        return _looked_at(way, q, k, v, mask, scale)
    if q.device.type != "cpu":
        found: Tensor | None = _apart(way, q, k, v, mask, scale)
        return found
    numbers, kind = documents_in_mask(mask)
    return _by_operator(way, q, k, v, mask, numbers, kind, scale)


def _looked_at(way: _Way, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor | None:
    """Look at the mask, then do the same."""
    documents = KNOWN.documents(mask)
    if documents is None:
        SEEN.note(is_packed=False)
        return None
    if q.device.type == "cpu":
        kind = torch.tensor([kind_of_documents(documents)])
        return _by_operator(way, q, k, v, None, documents.numbers, kind, scale)
    SEEN.note(is_packed=True)
    return flex_attention(q, k, v, _for_rows(documents, len(q)), scale=scale, block_size=way.block_size)


_apart = torch.compiler.disable(_looked_at)
"""Do the same between two graphs, where a model for a GPU is compiled: a graph cannot look at the mask's values."""


def _for_rows(documents: Documents, num_rows: int) -> Documents:
    """Return the documents of so many rows; one row of them stands for all."""
    if len(documents.numbers) == num_rows:
        return documents
    return Documents(documents.numbers.expand(num_rows, -1), documents.is_causal)


def _by_operator(
    way: _Way, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, numbers: Tensor, kind: Tensor, scale: float
) -> Tensor:
    products = way.products and q.dtype is torch.bfloat16 and torch.is_grad_enabled()
    if products and q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    keep = products and way.keep
    found: Tensor = attention_within_documents(q, k, v, mask, numbers, kind, scale, products, keep)[0]
    return found


class AttentionWithinDocuments(AddedForward):
    """Run forward with attention that is computed document by document, where a mask keeps documents apart.

    Where the module also computes attention as products, so is that of each document. `block_size` counts the tokens
    of a block of FlexAttention, on a GPU.
    """

    block_size = FLEX_BLOCK

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        products = isinstance(self, AttentionByProducts)
        keep = isinstance(self, AttentionByProducts) and self.keeps_probabilities
        with InPlaceOfFused(partial(_attended, _Way(products, keep, self.block_size))):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def with_block_size(block_size: int) -> type[AttentionWithinDocuments]:
    """Return the class with another size of FlexAttention's blocks."""
    if block_size == FLEX_BLOCK:
        return AttentionWithinDocuments
    return type("AttentionWithinDocuments", (AttentionWithinDocuments,), {"block_size": block_size})


def note_of_masks() -> str:
    """Return what became of the attentions with a mask so far, for the report; "" where all were computed so."""
    if not SEEN.num_packed:
        return (
            "document_attention has met no mask that does nothing but keep the documents of packed rows apart: so far "
            "it changes nothing"
        )
    if SEEN.num_other:
        total = SEEN.num_packed + SEEN.num_other
        return (
            f"document_attention: {SEEN.num_other} of {total} attentions with a mask stayed PyTorch's own, since their "
            "masks do more than keep documents apart"
        )
    return ""
