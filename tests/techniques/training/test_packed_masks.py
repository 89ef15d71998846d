"""Documents are found in masks that do nothing but keep them apart, and in no others."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import as_kind, mask_of, rows_of_numbers
from torch import Tensor

from whet.techniques.mechanisms.packing import packed_masks
from whet.techniques.mechanisms.packing.packed_attention import BLIND, Documents
from whet.techniques.mechanisms.packing.packed_masks import AttentionCounter, KnownMasks, find_documents
from whet.techniques.mechanisms.packing.packing import PADDING


@settings(deadline=None, max_examples=60)
@given(numbers=rows_of_numbers(), is_causal=st.booleans(), kind=st.sampled_from(["bool", "-inf"]))
def test_documents_are_found_again(numbers: Tensor, kind: str, *, is_causal: bool) -> None:
    mask = mask_of(numbers, is_causal=is_causal)
    torch.testing.assert_close(Documents(numbers, is_causal).mask, mask)
    found = find_documents(as_kind(mask, kind))
    assert found is not None
    torch.testing.assert_close(found.mask, mask)
    assert torch.equal(found.numbers < 0, numbers < 0)
    assert found.num_products == Documents(numbers, is_causal).num_products == int(mask.sum())


@settings(deadline=None, max_examples=100)
@given(numbers=rows_of_numbers(), is_causal=st.booleans(), kind=st.sampled_from(["bool", "-inf"]), data=st.data())
def test_a_mask_with_one_bit_flipped_is_another_one(
    numbers: Tensor, kind: str, data: st.DataObject, *, is_causal: bool
) -> None:
    """What is found is exactly the mask that was given, or nothing: a flipped bit may move or end a document."""
    mask = mask_of(numbers, is_causal=is_causal)
    rows, _, length, _ = mask.shape
    place = tuple(data.draw(st.integers(0, size - 1)) for size in (rows, 1, length, length))
    mask[place] = ~mask[place]
    found = find_documents(as_kind(mask, kind))
    assert found is None or torch.equal(found.mask, mask)


def test_what_is_no_mask_of_documents() -> None:
    triangle = torch.ones(8, 8, dtype=torch.bool).tril()
    window = triangle & ~torch.ones(8, 8, dtype=torch.bool).tril(-3)
    right_padding = triangle.clone()
    right_padding[:, 5:] = False
    for mask in (window, right_padding, triangle.T, ~triangle):
        assert find_documents(mask) is None
    assert find_documents(torch.randn(8, 8)) is None
    assert find_documents(torch.full((8, 8), math.nan)) is None
    low = torch.zeros(8, 8).masked_fill(~triangle, -1e4)
    assert find_documents(low) is None, "a score may be larger than that"
    whole = find_documents(triangle)
    assert whole is not None
    assert whole.stretches == (((8, 0),),)


def test_a_query_that_sees_nothing_must_be_told_so_by_infinity() -> None:
    """The softmax over equal numbers is the mean of all values, and over -inf PyTorch gives zeros."""
    mask = mask_of(torch.tensor([[0, 0, 0, BLIND]]), is_causal=True)
    assert find_documents(as_kind(mask, "-inf")) is not None
    assert find_documents(as_kind(mask, "lowest")) is None
    assert find_documents(as_kind(mask_of(torch.tensor([[0, 0, 1, 1]]), is_causal=True), "lowest")) is not None


def test_masks_of_heads_and_rows() -> None:
    mask = mask_of(torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, PADDING]]), is_causal=True)
    for same in (mask[0, 0], mask[0], mask[:1], mask[:1].expand(3, 2, -1, -1), mask[0].repeat(4, 1, 1)):
        found = find_documents(same)
        assert found is not None
        assert found.stretches == (((2, 0), (3, 1)),), "once, where all rows have the same mask"
    heads = mask.repeat(1, 3, 1, 1)
    assert find_documents(heads) is not None
    heads[1, 2, 4, 3] = True
    assert find_documents(heads) is None, "one head differs"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a mask is looked at whole."""
    calls: list[int] = []
    original = find_documents

    def counted(mask: Tensor) -> Any:
        calls.append(1)
        return original(mask)

    monkeypatch.setattr(packed_masks, "find_documents", counted)
    return calls


def test_a_mask_is_looked_at_once_while_it_lives(looked: list[int]) -> None:
    known = KnownMasks()
    mask = mask_of(torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2]]), is_causal=True)
    first = known.documents(mask)
    assert first is not None
    assert known.documents(mask) is first
    assert known.documents(mask[:, :]) is first, "a view of the same memory"
    assert known.documents(mask.detach()) is first
    shorter = known.documents(mask[..., :5, :5])
    assert shorter is not None
    assert shorter.stretches == (((2, 0), (3, 1)),)
    assert len(looked) == 2
    mask[0, 0, 7, 0] = True
    assert known.documents(mask) is None
    assert known.documents(mask) is None
    assert len(looked) == 3, "it was written to"
    del mask
    known.documents(torch.ones(4, 4, dtype=torch.bool))
    assert len(known._found) == 1, "a mask that is gone is forgotten"


def test_writes_that_pytorch_does_not_count_are_seen_where_documents_move() -> None:
    known = KnownMasks()
    first, second = (mask_of(torch.tensor([n]), is_causal=True) for n in ([0, 0, 1, 1], [0, 0, 0, 1]))
    mask = first.clone()
    assert known.documents(mask) is not None
    mask.numpy()[:] = second.numpy()
    found = known.documents(mask)
    assert found is not None
    assert torch.equal(found.mask, second)


def test_masks_of_inference_mode_are_not_remembered(looked: list[int]) -> None:
    with torch.inference_mode():
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        known = KnownMasks()
        assert known.documents(mask) is not None
        assert known.documents(mask) is not None
    assert len(looked) == 2


def test_the_share_of_products_within_documents() -> None:
    mask = mask_of(torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]), is_causal=True)
    q = torch.randn(2, 3, 4, 8)
    with AttentionCounter() as counter:
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert (counter.num_products, counter.num_within) == (2 * 3 * 16, 3 * (6 + 1 + 3 + 3))
    with counter:
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q, q, q, mask, 0.1)
    assert counter.share == (3 * 13 + 2 * 96) / (3 * 96)
    with AttentionCounter() as counter:
        F.scaled_dot_product_attention(q, q, q[:, :, :, :4], attn_mask=mask)
    assert counter.share == 1.0
    assert AttentionCounter().share == 1.0
