"""Packed documents train as the same documents do one by one: rows, labels, attention and gradients."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.errors import OptionError
from whet.techniques.mechanisms.packing.packed_attention import (
    Documents,
    document_attention,
    flex_attention,
    masked_attention,
)
from whet.techniques.mechanisms.packing.packing import (
    IGNORED,
    PADDING,
    LengthBatches,
    PackedBatches,
    TokenBatch,
    packed_rows,
    token_batch,
)

VOCAB = 37
LENGTHS = st.lists(st.integers(1, 12), max_size=40)


def documents_of(lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCAB, (length,), generator=generator) for length in lengths]


def found_in(batch: TokenBatch) -> list[list[int]]:
    """Return the documents of a batch, read back from its rows."""
    found = []
    for ids, numbers in zip(batch.ids, batch.documents, strict=True):
        found += [ids[numbers == number].tolist() for number in range(int(numbers.max()) + 1)]
    return found


def test_the_longest_document_comes_first_into_the_first_row_with_room() -> None:
    """Johnson's first-fit decreasing, by hand."""
    assert packed_rows([4, 8, 1, 4, 2, 1], 10) == [[1, 4], [0, 3, 2, 5]]
    assert packed_rows([5, 5, 5], 10) == [[0, 1], [2]]
    assert packed_rows([], 10) == []
    with pytest.raises(OptionError, match="a document of 11 tokens does not fit into a row of 10; split it before"):
        packed_rows([3, 11], 10)


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, row_length=st.integers(12, 30))
def test_rows_hold_every_document_once_and_are_full(lengths: list[int], row_length: int) -> None:
    rows = packed_rows(lengths, row_length)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= row_length for row in rows)
    filled = [sum(lengths[index] for index in row) for row in rows]
    assert sum(2 * tokens <= row_length for tokens in filled) <= 1, "two rows that are half empty would be one"


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, window=st.integers(1, 9), num_rows=st.integers(1, 3), shuffle=st.booleans())
def test_a_pass_of_packed_batches(lengths: list[int], window: int, num_rows: int, *, shuffle: bool) -> None:
    documents = documents_of(lengths)

    def batches() -> PackedBatches:
        own = torch.Generator().manual_seed(5)
        return PackedBatches(documents, 16, num_rows, window=window, shuffle=shuffle, generator=own)

    loader = batches()
    first = list(loader)
    assert all(batch.ids.shape == (num_rows, 16) for batch in first[:-1])
    found = [document for batch in first for document in found_in(batch)]
    assert sorted(found) == sorted(document.tolist() for document in documents)
    assert sum(batch.num_valid for batch in first) == sum(length - 1 for length in lengths)
    again = list(batches())
    assert [x.ids.tolist() for x in again] == [x.ids.tolist() for x in first], "the same order from the same seed"
    if not shuffle:
        assert [x.ids.tolist() for x in loader] == [x.ids.tolist() for x in first]


def test_positions_labels_and_targets() -> None:
    batch = token_batch([[[5, 6, 7], [8, 9]], [torch.tensor([4])]], 7, padding_id=1)
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9, 1, 1], [4, 1, 1, 1, 1, 1, 1]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1], [0, 0, 1, 2, 3, 4, 5]]
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, -1, -1], [0, -1, -1, -1, -1, -1, -1]]
    no = IGNORED
    assert batch.labels.tolist() == [[no, 6, 7, no, 9, no, no], [no] * 7]
    assert batch.targets.tolist() == [[6, 7, no, 9, no, no, no], [no] * 7]
    assert batch.num_valid == 3
    assert batch.ids.dtype == batch.labels.dtype == torch.int64


@settings(deadline=None, max_examples=60)
@given(
    lengths=LENGTHS,
    window=st.integers(1, 50),
    max_tokens=st.none() | st.integers(12, 40),
    batch_size=st.none() | st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_a_pass_of_batches_by_length(
    lengths: list[int], window: int, max_tokens: int | None, batch_size: int | None, *, shuffle: bool
) -> None:
    documents = documents_of(lengths)
    if max_tokens is None and batch_size is None:
        with pytest.raises(OptionError, match="give max_tokens or batch_size"):
            LengthBatches(documents, window=window)
        return
    found = []
    for batch in LengthBatches(documents, max_tokens=max_tokens, batch_size=batch_size, window=window, shuffle=shuffle):
        assert max_tokens is None or batch.ids.numel() <= max_tokens
        assert batch_size is None or len(batch.ids) <= batch_size
        assert batch.ids.shape[1] == int((batch.documents != PADDING).sum(1).max()), "no longer than the longest"
        found += found_in(batch)
    assert sorted(found) == sorted(document.tolist() for document in documents)


def test_sorted_batches_are_full_and_little_is_padded() -> None:
    documents = documents_of([3, 12, 4, 11, 3, 12])
    shapes = [tuple(batch.ids.shape) for batch in LengthBatches(documents, max_tokens=24)]
    assert shapes == [(2, 12), (2, 11), (2, 3)]
    shapes = [tuple(batch.ids.shape) for batch in LengthBatches(documents, batch_size=4)]
    assert shapes == [(4, 12), (2, 3)]


def test_documents_without_tokens_are_left_out_and_wrong_sizes_are_refused() -> None:
    assert [x.ids.tolist() for x in PackedBatches([[], [3], []], 2, 1)] == [[[3, 0]]]
    assert list(PackedBatches([], 4, 1)) == []
    for make in (
        lambda: PackedBatches([], 0, 1),
        lambda: PackedBatches([], 4, 0),
        lambda: PackedBatches([], 4, 1, window=0),
        lambda: LengthBatches([], batch_size=0),
    ):
        with pytest.raises(OptionError, match="1 or more"):
            make()
    with pytest.raises(OptionError, match="a document of 5 tokens is above max_tokens, 4"):
        list(LengthBatches([[1] * 5], max_tokens=4))


def reference_attention(q: Tensor, k: Tensor, v: Tensor, numbers: Tensor, scale: float) -> Tensor:
    """Compute attention in float64 by its definition, token by token."""
    rows, heads, length, _ = q.shape
    out = torch.zeros_like(q)
    for r in range(rows):
        for h in range(heads):
            g = h * k.shape[1] // heads
            for t in range(length):
                seen = [s for s in range(t + 1) if numbers[r, s] == numbers[r, t] != PADDING]
                if seen:
                    weights = torch.softmax(scale * (k[r, g, seen] @ q[r, h, t]), 0)
                    out[r, h, t] = weights @ v[r, g, seen]
    return out


ATTENTIONS: dict[str, Callable[..., Tensor]] = {"documents": document_attention, "mask": masked_attention}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_and_its_gradients(name: str, heads: int, groups: int, scale: float | None) -> None:
    """Against the definition, in float64 and in float32; values and gradients at padding do not count."""
    batch = token_batch([documents_of([5, 1, 3]), documents_of([9]), documents_of([2, 2, 2, 2])], 9)
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, n, 9, 8) for n in (heads, groups, groups)]
    exact = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    counted = (batch.documents != PADDING)[:, None, :, None]
    weights = torch.randn(shapes[0], generator=generator, dtype=torch.float64) * counted
    wanted = reference_attention(*exact, batch.documents, 8**-0.5 if scale is None else scale)
    wanted_gradients = torch.autograd.grad((wanted * weights).sum(), exact)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        # As transformers lays them out: [R, T, H, D] seen as [R, H, T, D].
        given_ = [x.detach().to(dtype).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in exact]
        found = ATTENTIONS[name](*given_, Documents(batch.documents), scale=scale)
        gradients = torch.autograd.grad((found * weights.to(dtype)).sum(), given_)
        torch.testing.assert_close((found * counted).double(), wanted * counted, rtol=0, atol=tolerance * 4)
        for mine, theirs in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=tolerance * 20)


def test_flex_attention_has_the_same_mask() -> None:
    numbers = token_batch([documents_of([5, 1, 3]), documents_of([9, 4])], 16).documents
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, 16, generator=generator) for n in (4, 2, 2))
    documents = Documents(numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        found = flex_attention(q, k, v, documents)
    torch.testing.assert_close(found, masked_attention(q, k, v, documents), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_attention_on_the_gpu() -> None:
    numbers = token_batch([documents_of([100, 20, 3]), documents_of([99])], 128).documents.cuda()
    counted = (numbers != PADDING)[:, None, :, None]
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, n, 128, 16, generator=generator).cuda().requires_grad_() for n in (4, 2, 2)]
    documents = Documents(numbers)
    results = []
    for attention in (masked_attention, document_attention, flex_attention):
        out = attention(*made, documents) * counted
        results.append([out, *torch.autograd.grad(out.sin().sum(), made)])
    for other in results[1:]:
        for mine, theirs in zip(other, results[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_documents_are_found_again_from_positions() -> None:
    batch = token_batch([documents_of([5, 1, 3]), documents_of([4, 4])], 10)
    found = Documents.from_positions(batch.positions)
    assert [[length for length, _ in row] for row in found.pieces] == [[5, 1, 3, 1], [4, 4, 2]]
    assert Documents(batch.documents).pieces == (
        ((5, True), (1, True), (3, True), (1, False)),
        ((4, True), (4, True), (2, False)),
    )
    assert Documents(batch.documents).share == pytest.approx((25 + 1 + 9 + 16 + 16) / 200)
    assert Documents(token_batch([documents_of([8] * 8)], 64).documents).share == pytest.approx(1 / 8)


class SmallModel(nn.Module):
    """Predict tokens by two layers of attention with learned positions, in float64."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, 16), nn.Embedding(32, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.head = nn.Linear(16, VOCAB)
        self.attention = attention
        self.double()

    def forward(self, batch: TokenBatch) -> Tensor:
        documents = Documents(batch.documents)
        x = self.tokens(batch.ids) + self.places(batch.positions)
        for layer in self.qkv:
            q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in layer(x).chunk(3, -1))
            x = x + self.attention(q, k, v, documents).transpose(1, 2).flatten(2)
        out: Tensor = self.head(x)
        return out


def summed_loss(logits: Tensor, batch: TokenBatch) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum")


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients_of_packed_batches_are_those_of_the_documents_one_by_one(name: str) -> None:
    """By name, in float64, summed over the batches and divided by the valid tokens of all of them."""
    documents = documents_of([7, 3, 12, 1, 5, 5, 9, 2, 2, 16, 4])
    torch.manual_seed(0)
    model = SmallModel(ATTENTIONS[name])

    def gradients(batches: Sequence[TokenBatch]) -> dict[str, Tensor]:
        model.zero_grad()
        total = sum(batch.num_valid for batch in batches)
        for batch in batches:
            (summed_loss(model(batch), batch) / total).backward()  # type: ignore[no-untyped-call]
        return {parameter: p.grad.clone() for parameter, p in model.named_parameters() if p.grad is not None}

    wanted = gradients([token_batch([[one]], len(one)) for one in documents])
    assert len(wanted) == len(list(model.parameters()))
    packed = gradients(list(PackedBatches(documents, 20, 2)))
    by_length = gradients(list(LengthBatches(documents, max_tokens=24)))
    for parameter, gradient in wanted.items():
        for found in (packed, by_length):
            torch.testing.assert_close(found[parameter], gradient, rtol=1e-10, atol=1e-13, msg=parameter)


def test_a_model_of_transformers_sees_the_documents_by_their_positions() -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    documents = documents_of([7, 3, 12, 5, 2])

    def gradients(batches: Sequence[TokenBatch]) -> dict[str, Tensor]:
        model.zero_grad()
        total = sum(batch.num_valid for batch in batches)
        for batch in batches:
            (model(**batch.for_transformers(model)).loss * batch.num_valid / total).backward()
        return {parameter: p.grad.clone() for parameter, p in model.named_parameters()}

    wanted = gradients([token_batch([[one]], len(one)) for one in documents])
    packed = gradients(list(PackedBatches(documents, 16, 2)))
    for parameter, gradient in wanted.items():
        # transformers computes rotary positions and the loss in float32.
        torch.testing.assert_close(packed[parameter], gradient, rtol=1e-5, atol=1e-8, msg=parameter)


def naive_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """First-fit decreasing by its definition, one document after the other."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        place = next((i for i, free in enumerate(room) if free >= lengths[index]), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(row_length)
        rows[place].append(index)
        room[place] -= lengths[index]
    return rows


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 30), st.data())
def test_documents_of_one_length_are_placed_together_as_one_after_the_other(
    row_length: int, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, row_length), max_size=60))
    assert packed_rows(lengths, row_length) == naive_rows(lengths, row_length)


def test_rows_that_go_on_and_tokens_that_are_not_learnt() -> None:
    """What follows a row is predicted by its last token; transformers are given the targets themselves."""
    no = IGNORED
    trained = [[[0, 0, 1]], [[1, 1, 1, 1]]]
    batch = token_batch([[[5, 6, 7]], [[4, 3, 2, 1]]], 4, trained=trained, following=[no, 9])
    assert batch.labels.tolist() == [[no, no, 7, no], [no, 3, 2, 1]]
    assert batch.targets.tolist() == [[no, 7, no, no], [3, 2, 1, 9]]
    assert batch.num_valid == 5
    model = nn.Linear(1, 1)  # it is not asked: no row holds several documents
    given_ = batch.for_transformers(model)
    assert torch.equal(given_["shift_labels"], batch.targets)
    assert "shift_labels" not in token_batch([[[5, 6]]], 2).for_transformers(model)
