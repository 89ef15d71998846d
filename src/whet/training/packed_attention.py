"""Compute causal attention within the documents of packed rows.

A row of T tokens costs T² products with a dense mask, whatever the mask hides. The documents one by one cost the sum of
the squares of their lengths: for eight documents of equal length, an eighth. That share is the limit of what can be
gained. On a CPU, PyTorch has no fused kernel for packed rows with a backward pass: varlen attention is for CUDA, and
FlexAttention has no backward on CPUs. So each document is computed by itself, by the fused kernel, on views of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.training.packing import PADDING


@dataclass(frozen=True, eq=False)
class Documents:
    """Say where the documents of packed rows lie. Make it once for a batch; every layer uses it.

    Attributes:
        numbers: The number of each token's document in its row; -1 for padding. [R, T], int64.
    """

    numbers: Tensor

    @classmethod
    def from_positions(cls, positions_RT: Tensor) -> "Documents":
        """Find documents where the positions begin at 0 again. Padding counts as a document."""
        return cls((positions_RT == 0).cumsum(1) - 1)

    @cached_property
    def pieces(self) -> tuple[tuple[tuple[int, bool], ...], ...]:
        """Return, for each row, the length of each document or stretch of padding, and whether it is a document."""
        found = []
        for row in self.numbers.cpu():
            numbers, lengths = torch.unique_consecutive(row, return_counts=True)
            pairs = zip(lengths.tolist(), numbers.tolist(), strict=True)
            found.append(tuple((length, number != PADDING) for length, number in pairs))
        return tuple(found)

    @cached_property
    def mask(self) -> Tensor:
        """Return which tokens see which: True within a document, at or before themselves. [R, 1, T, T].

        Padding sees itself alone, so that its rows of the softmax are not empty.
        """
        n = self.numbers
        same = (n[:, :, None] == n[:, None, :]) & (n != PADDING)[:, :, None]
        causal = torch.ones(n.shape[1], n.shape[1], dtype=torch.bool, device=n.device).tril()
        itself = torch.eye(n.shape[1], dtype=torch.bool, device=n.device)
        return ((same & causal) | itself)[:, None]

    @cached_property
    def block_mask(self) -> Any:
        """Return the mask as FlexAttention's, which leaves out whole blocks between documents."""
        from torch.nn.attention.flex_attention import create_block_mask

        numbers = self.numbers

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            same = (numbers[b, q] == numbers[b, k]) & (numbers[b, q] != PADDING)
            return (same & (q >= k)) | (q == k)

        rows, length = numbers.shape
        return create_block_mask(sees, rows, None, length, length, device=numbers.device)

    @property
    def share(self) -> float:
        """Return the documents' squared lengths over the rows' squared length: the share of the work that is needed."""
        squares = sum(length**2 for row in self.pieces for length, is_document in row if is_document)
        rows, length = self.numbers.shape
        return squares / (rows * length**2)


def document_attention(
    q_RHTD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, documents: Documents, *, scale: float | None = None
) -> Tensor:
    """Return causal attention within each document, with a backward pass; padding gives zeros.

    The documents are computed one after the other, each by PyTorch's fused kernel on a view of the row.

    Args:
        q_RHTD: Queries: rows, heads, tokens, numbers of a head.
        k_RGTD: Keys, with as many heads or a divisor of it.
        v_RGTD: Values, likewise.
        documents: Where the documents lie.
        scale: What products are multiplied with; None is 1 / sqrt(D).

    Returns:
        The attended values, [R, H, T, D].
    """
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    rows = []
    # split and unbind give views, and their backward puts the pieces together once; slices would each fill a whole row.
    for q, k, v, pieces in zip(q_RHTD.unbind(0), k_RGTD.unbind(0), v_RGTD.unbind(0), documents.pieces, strict=True):
        lengths = [length for length, _ in pieces]
        parts: list[Tensor] = []
        for *one, (_, is_document) in zip(*(x.split(lengths, dim=1) for x in (q, k, v)), pieces, strict=True):
            parts.append(_attended(one, scale, grouped=grouped) if is_document else torch.zeros_like(one[0]))
        rows.append(torch.cat(parts, dim=1))
    return torch.stack(rows)


def _attended(qkv: Sequence[Tensor], scale: float | None, *, grouped: bool) -> Tensor:
    """Return the attention of one document: [H, L, D]."""
    q, k, v = (x[None] for x in qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)[0]


def masked_attention(
    q_RHTD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, documents: Documents, *, scale: float | None = None
) -> Tensor:
    """Return the same as document_attention, by a dense mask; padding attends to itself."""
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    return F.scaled_dot_product_attention(
        q_RHTD, k_RGTD, v_RGTD, attn_mask=documents.mask, scale=scale, enable_gqa=grouped
    )


def flex_attention(
    q_RHTD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, documents: Documents, *, scale: float | None = None
) -> Tensor:
    """Return the same as document_attention, by FlexAttention's block mask; padding attends to itself.

    It is compiled on CUDA. On a CPU it has no backward pass, and is slow: it is there to be compared with.
    """
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    flex = _flex(compiled=q_RHTD.is_cuda)
    out: Tensor = flex(q_RHTD, k_RGTD, v_RGTD, block_mask=documents.block_mask, scale=scale, enable_gqa=grouped)
    return out


@cache
def _flex(*, compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as flex

    return torch.compile(flex) if compiled else flex
