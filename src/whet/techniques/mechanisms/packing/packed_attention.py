"""Compute attention within the documents of packed rows.

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

PADDING = -1  # the document number of padding
FLEX_BLOCK = 128  # tokens of a block of FlexAttention, as PyTorch chooses
BLIND = -2  # the document number of a token that sees nothing, not even itself

Stretch = tuple[int, int]
"""The length of a document, or of a run of padding or blind tokens, and its number."""


def stretches_of(numbers_RT: Tensor) -> tuple[tuple[Stretch, ...], ...]:
    """Return the stretches of tokens with the same number in each row, in order."""
    found = []
    for row in numbers_RT.cpu():
        numbers, lengths = torch.unique_consecutive(row, return_counts=True)
        found.append(tuple(zip(lengths.tolist(), numbers.tolist(), strict=True)))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Documents:
    """Say where the documents of packed rows lie. Make it once for a batch; every layer uses it.

    Attributes:
        numbers: The number of each token's document in its row; -1 for padding, which sees itself alone; -2 for a token
            that sees nothing. [R, T], int64.
        is_causal: Whether a token sees no later one of its document.
    """

    numbers: Tensor
    is_causal: bool = True

    @classmethod
    def from_positions(cls, positions_RT: Tensor) -> "Documents":
        """Find documents where the positions begin at 0 again. Padding counts as a document."""
        return cls((positions_RT == 0).cumsum(1) - 1)

    @cached_property
    def stretches(self) -> tuple[tuple[Stretch, ...], ...]:
        """Return, for each row, the length and the number of each document or stretch of other tokens."""
        return stretches_of(self.numbers)

    @property
    def pieces(self) -> tuple[tuple[tuple[int, bool], ...], ...]:
        """Return, for each row, the length of each document or stretch of padding, and whether it is a document."""
        return tuple(tuple((length, number >= 0) for length, number in row) for row in self.stretches)

    @cached_property
    def mask(self) -> Tensor:
        """Return which tokens see which: True within a document. [R, 1, T, T].

        Padding sees itself alone, so that its rows of the softmax are not empty.
        """
        n = self.numbers
        seen = (n[:, :, None] == n[:, None, :]) & (n >= 0)[:, :, None]
        if self.is_causal:
            seen = seen & torch.ones(n.shape[1], n.shape[1], dtype=torch.bool, device=n.device).tril()
        itself = torch.eye(n.shape[1], dtype=torch.bool, device=n.device)
        return (seen | (itself & (n == PADDING)[:, :, None]))[:, None]

    @property
    def num_products(self) -> int:
        """Return how many pairs of tokens see each other in all rows: what one head multiplies at least."""
        found = 0
        for length, number in (stretch for row in self.stretches for stretch in row):
            if number == PADDING:
                found += length
            elif number != BLIND:
                found += length * (length + 1) // 2 if self.is_causal else length**2
        return found

    def block_mask(self, block_size: int = FLEX_BLOCK) -> Any:
        """Return FlexAttention's mask, which skips blocks of `block_size` queries and keys that share no document."""
        if block_size not in self._block_masks:
            self._block_masks[block_size] = self._made_block_mask(block_size)
        return self._block_masks[block_size]

    @cached_property
    def _block_masks(self) -> dict[int, Any]:
        return {}

    def _made_block_mask(self, block_size: int) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        numbers, is_causal = self.numbers, self.is_causal

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            same = (numbers[b, q] == numbers[b, k]) & (numbers[b, q] >= 0)
            if is_causal:
                same = same & (q >= k)
            return same | ((q == k) & (numbers[b, q] == PADDING))

        rows, length = numbers.shape
        return create_block_mask(
            sees, rows, None, length, length, device=numbers.device, BLOCK_SIZE=(block_size, block_size)
        )

    @property
    def share(self) -> float:
        """Return the documents' squared lengths over the rows' squared length: the share of the work that is needed."""
        squares = sum(length**2 for row in self.pieces for length, is_document in row if is_document)
        rows, length = self.numbers.shape
        return squares / (rows * length**2)


def document_attention(
    q_RHTD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, documents: Documents, *, scale: float | None = None
) -> Tensor:
    """Return attention within each document, [R, H, T, D], with a backward pass; padding gives zeros.

    The documents are computed one after the other, each by PyTorch's fused kernel on a view of the row.

    Args:
        q_RHTD: Queries: rows, heads, tokens, numbers of a head.
        k_RGTD: Keys, with as many heads or a divisor of it.
        v_RGTD: Values, likewise.
        scale: What products are multiplied with; None is 1 / sqrt(D).
    """
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    rows = []
    # split and unbind give views, and their backward puts the pieces together once; slices would each fill a whole row.
    for q, k, v, pieces in zip(q_RHTD.unbind(0), k_RGTD.unbind(0), v_RGTD.unbind(0), documents.pieces, strict=True):
        lengths = [length for length, _ in pieces]
        parts: list[Tensor] = []
        for *one, (_, is_document) in zip(*(x.split(lengths, dim=1) for x in (q, k, v)), pieces, strict=True):
            done = _attended(one, documents, scale, grouped=grouped) if is_document else torch.zeros_like(one[0])
            parts.append(done)
        rows.append(torch.cat(parts, dim=1))
    return torch.stack(rows)


def _attended(qkv: Sequence[Tensor], documents: Documents, scale: float | None, *, grouped: bool) -> Tensor:
    """Return the attention of one document: [H, L, D]."""
    q, k, v = (x[None] for x in qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=documents.is_causal, scale=scale, enable_gqa=grouped)[0]


def masked_attention(
    q_RHTD: Tensor, k_RGTD: Tensor, v_RGTD: Tensor, documents: Documents, *, scale: float | None = None
) -> Tensor:
    """Return the same as document_attention, by a dense mask; padding attends to itself."""
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    return F.scaled_dot_product_attention(
        q_RHTD, k_RGTD, v_RGTD, attn_mask=documents.mask, scale=scale, enable_gqa=grouped
    )


def flex_attention(
    q_RHTD: Tensor,
    k_RGTD: Tensor,
    v_RGTD: Tensor,
    documents: Documents,
    *,
    scale: float | None = None,
    block_size: int = FLEX_BLOCK,
) -> Tensor:
    """Return the same as document_attention, by FlexAttention's block mask; padding attends to itself.

    It is compiled on CUDA. On a CPU it has no backward pass, and is slow: it is there to be compared with.
    """
    grouped = q_RHTD.shape[1] != k_RGTD.shape[1]
    flex = _flex(compiled=q_RHTD.is_cuda)
    blocks = documents.block_mask(block_size)
    out: Tensor = flex(q_RHTD, k_RGTD, v_RGTD, block_mask=blocks, scale=scale, enable_gqa=grouped)
    return out


@cache
def _flex(*, compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as flex

    return torch.compile(flex) if compiled else flex
