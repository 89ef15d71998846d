"""Rows of documents, their masks, and attention with them, for the tests of packed attention."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing.document_masking import AttentionWithinDocuments
from whet.techniques.mechanisms.packing.packed_attention import BLIND
from whet.techniques.mechanisms.packing.packing import PADDING

LOWEST = torch.finfo(torch.float32).min


@st.composite
def rows_of_numbers(draw: st.DrawFn, num_rows: int = 2) -> Tensor:
    """Draw documents, padding and tokens that see nothing, in rows of one length."""
    num_tokens = draw(st.integers(2, 24))
    rows = []
    for _ in range(draw(st.integers(1, num_rows))):
        row: list[int] = []
        for number in range(num_tokens):
            kind = draw(st.sampled_from([number, number, number, PADDING, BLIND]))
            length = draw(st.integers(1 if kind < 0 else 2, 9))
            row += [kind] * length
        while len(row[:num_tokens]) < num_tokens:
            row.append(PADDING)
        row = row[:num_tokens]
        # A document that is cut to one token sees itself alone, as padding does.
        rows.append([PADDING if n >= 0 and row.count(n) == 1 else n for n in row])
    return torch.tensor(rows)


def mask_of(numbers: Tensor, *, is_causal: bool) -> Tensor:
    """Return which token sees which, token by token."""
    rows, length = numbers.shape
    mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for r in range(rows):
        for q in range(length):
            for k in range(length):
                same = bool(numbers[r, q] == numbers[r, k]) and numbers[r, q] >= 0 and (k <= q or not is_causal)
                mask[r, 0, q, k] = same or (q == k and numbers[r, q] == PADDING)
    return mask


def as_kind(mask: Tensor, kind: str) -> Tensor:
    if kind == "bool":
        return mask
    return torch.zeros(mask.shape).masked_fill(~mask, -math.inf if kind == "-inf" else LOWEST)


class Attention(nn.Module):
    """Call attention with some options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def within_documents_of(**options: Any) -> nn.Module:
    module = Attention(**options)
    extend(module, AttentionWithinDocuments)
    return module


def inputs(rows: int, heads: int, groups: int, tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return queries, keys and values as transformers lays them out: [R, T, H, D] seen as [R, H, T, D]."""
    generator = torch.Generator().manual_seed(rows + heads + tokens)
    made = [torch.randn(rows, tokens, n, 8, generator=generator, dtype=dtype) for n in (heads, groups, groups)]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def results(module: Any, qkv: Sequence[Tensor]) -> list[Tensor]:
    """Return the attended values and the gradients of queries, keys and values."""
    out = module(*qkv)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), qkv)]
