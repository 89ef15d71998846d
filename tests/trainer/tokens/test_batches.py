"""Rows hold every token once, a batch depends on its step alone, and packed rows have the loss of their documents."""

import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from token_stores import digest_of
from torch import Tensor, nn

from whet.errors import OptionError, TargetError
from whet.techniques.mechanisms.packing.packed_attention import Documents, masked_attention
from whet.techniques.mechanisms.packing.packing import IGNORED, PADDING, TokenBatch, token_batch
from whet.trainer.tokens import row_plan
from whet.trainer.tokens.batches import PackedRows, Rows, TokenBatches, Windows, split
from whet.trainer.tokens.store import StoreWriter, TokenStore
from whet.trainer.tokens.tokenise import tokenised

DATA = Path(__file__).parents[4] / "shared/data"
VOCAB = 37
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def store_of(directory: Path, documents: Sequence[Sequence[int]], masks: Sequence[Any] | None = None) -> TokenStore:
    with StoreWriter(directory / "store", "uint16") as writer:
        for number, document in enumerate(documents):
            writer.append(document, None if masks is None else masks[number])
    return TokenStore.open(directory / "store")


@pytest.fixture
def counted(tmp_path: Path) -> TokenStore:
    """Documents in which each token is its own place."""
    return store_of(tmp_path, np.split(np.arange(100), [7, 10, 11, 50, 53, 80]))


def predictions(batch: TokenBatch) -> Iterator[tuple[list[int], int]]:
    """What each target is predicted from: the tokens of its document before it."""
    for ids, numbers, targets in zip(batch.ids, batch.documents, batch.targets, strict=True):
        for place, target in enumerate(targets.tolist()):
            if target != IGNORED:
                assert numbers[place] != PADDING
                yield ids[: place + 1][numbers[: place + 1] == numbers[place]].tolist(), target


def all_of(rows: Rows) -> TokenBatch:
    return rows.batch(range(len(rows)))


@given(st.integers(2, 60), st.integers(1, 12))
def test_windows_predict_every_token_but_the_first_once(num_tokens: int, width: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = store_of(Path(directory), [range(num_tokens)])
        if num_tokens <= width:
            with pytest.raises(TargetError, match="too few for one window"):
                Windows(store, width)
            return
        windows = Windows(store, width)
        assert [windows.row(i).tolist() for i in range(len(windows))] == [
            list(range(i * width, (i + 1) * width + 1)) for i in range((num_tokens - 1) // width)
        ]
        batch = all_of(windows)
        assert batch.ids.shape == (len(windows), width)
        assert batch.num_valid == len(windows) * width
        assert [target for _, target in predictions(batch)] == list(range(1, len(windows) * width + 1))
        assert batch.documents.eq(0).all()
        assert batch.positions.tolist() == [list(range(width))] * len(windows)
        assert all(context[-1] + 1 == target for context, target in predictions(batch))
        with pytest.raises(IndexError):
            windows.row(len(windows))


def wanted_predictions(
    documents: Sequence[Sequence[int]], masks: Sequence[Any], width: int
) -> Counter[tuple[int, ...]]:
    """The same for documents that are cut every `width` tokens, by the definition."""
    found: Counter[tuple[int, ...]] = Counter()
    for document, mask in zip(documents, masks, strict=True):
        for place in range(1, len(document)):
            if mask[place]:
                found[(*document[(place - 1) // width * width : place], document[place])] += 1
    return found


@given(LENGTHS, st.integers(1, 16), st.integers(1, 5), st.data())
def test_packed_rows_predict_every_token_but_a_documents_first_once(
    lengths: list[int], width: int, window: int, data: st.DataObject
) -> None:
    documents = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    has_mask = data.draw(st.booleans())
    masks = [np.array([not has_mask or data.draw(st.booleans()) for _ in document]) for document in documents]
    wanted = wanted_predictions([document.tolist() for document in documents], masks, width)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_plan, "_WINDOW", window)
        store = store_of(Path(directory), documents, masks if has_mask else None)
        if not wanted:
            with pytest.raises(TargetError, match="no document has two tokens"):
                PackedRows(store, width)
            return
        rows = PackedRows(store, width)
        batch = all_of(rows)
        assert Counter((*context, target) for context, target in predictions(batch)) == wanted
        assert batch.ids.shape == (len(rows), width)
        taken = batch.documents != PADDING
        assert rows.num_tokens == int(taken.sum())
        assert rows.padding_share == pytest.approx(1 - rows.num_tokens / taken.numel())
        assert batch.ids[~taken].eq(0).all()
        shown = [[piece.tolist() for piece in rows.row(i)] for i in range(len(rows))]
        for ids, numbers, pieces in zip(batch.ids, batch.documents, shown, strict=True):
            assert [ids[numbers == n].tolist() for n in range(len(pieces))] == pieces
        places = [place for row in shown for piece in row for place in piece]
        assert len(places) == len(set(places)), "no token lies in two rows"
        with pytest.raises(IndexError):
            rows.row(len(rows))


def test_a_plan_is_kept_beside_the_tokens(counted: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = PackedRows(counted, 16), PackedRows(counted, 8)
    part = PackedRows(counted.view(0, 60), 16)
    assert len(list(counted.place.glob("rows-*.npy"))) == 3
    plans = [all_of(rows).ids.tolist() for rows in (first, other, part)]
    with monkeypatch.context() as patched:
        patched.setattr(row_plan, "_planned", None)
        again = [PackedRows(counted, 16), PackedRows(counted, 8), PackedRows(counted.view(0, 60), 16)]
        assert [all_of(rows).ids.tolist() for rows in again] == plans
        assert all_of(pickle.loads(pickle.dumps(first))).ids.tolist() == plans[0]
    for path in counted.place.glob("rows-*.npy"):
        path.write_bytes(path.read_bytes()[:-8])
    assert all_of(PackedRows(counted, 16)).ids.tolist() == plans[0]
    monkeypatch.setattr(row_plan, "write_whole", _refused)
    for path in counted.place.glob("rows-*.npy"):
        path.unlink()
    assert all_of(PackedRows(counted, 16)).ids.tolist() == plans[0], "a place that cannot be written costs time alone"
    assert digest_of(TokenStore.open(counted.place)) == counted.digest


def _refused(*_: Any) -> None:
    from whet.errors import OutputError

    raise OutputError("read-only")


@given(st.integers(2, 60), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_an_epoch_of_batches_has_every_row_once(num_tokens: int, width: int, size: int, shuffle: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = store_of(Path(directory), [range(num_tokens + width)])
        windows = Windows(store, width)
        batches = TokenBatches(windows, size, 5, shuffle=shuffle)
        count = 2 * len(windows)
        steps = -(-count // size)
        firsts = [int(row[0]) // width for step in range(steps) for row in batches.batch_at(step).ids]
        assert len(firsts) == steps * size, "each batch is full"
        for epoch in (firsts[: len(windows)], firsts[len(windows) : count]):
            assert sorted(epoch) == list(range(len(windows)))
            assert shuffle or epoch == sorted(epoch)
        assert batches.epoch_at(steps) == pytest.approx(steps * size / len(windows))


def equal(first: TokenBatch, second: TokenBatch) -> bool:
    names = ("ids", "positions", "documents", "labels", "targets", "following")
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


@pytest.mark.parametrize("kind", [Windows, PackedRows])
def test_a_batch_depends_on_its_step_alone(kind: Callable[..., Any], counted: TokenStore) -> None:
    def batches(**options: Any) -> TokenBatches:
        return TokenBatches(kind(TokenStore.open(counted.place), 8), 3, 7, **options)

    whole = list(islice(batches(), 30))
    assert all(equal(batches().batch_at(step), whole[step]) for step in (29, 3, 17, 0))
    assert all(equal(*pair) for pair in zip(islice(batches(start=11), 19), whole[11:], strict=True))
    copied = pickle.loads(pickle.dumps(batches()))
    assert equal(copied.batch_at(12), whole[12])
    other = TokenBatches(kind(counted, 8), 3, 8)
    assert not all(equal(other.batch_at(step), whole[step]) for step in range(5))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [Windows, PackedRows])
def test_a_loader_gives_the_same_batches_with_any_number_of_workers(
    num_workers: int, kind: Callable[..., Any], counted: TokenStore
) -> None:
    batches = TokenBatches(kind(counted, 8), 3, 7, start=4)
    torch.manual_seed(3)
    drawn = torch.rand(()).item()
    torch.manual_seed(3)
    found = list(islice(batches.as_loader(num_workers), 12))
    assert torch.rand(()).item() == drawn, "nothing is drawn from PyTorch's generator"
    assert all(equal(batch, batches.batch_at(4 + i)) for i, batch in enumerate(found))
    (later,) = islice(batches.as_loader(num_workers, start=40), 1)
    assert equal(later, batches.batch_at(40))


def test_numbers_out_of_range_are_refused(counted: TokenStore) -> None:
    windows = Windows(counted, 8)
    for make in (
        lambda: Windows(counted, 0),
        lambda: PackedRows(counted, 0),
        lambda: TokenBatches(windows, 0, 1),
        lambda: TokenBatches(windows, 1, -1),
        lambda: TokenBatches(windows, 1, 1, start=-1),
        lambda: TokenBatches(windows, 1, 1).as_loader(start=-1),
        lambda: TokenBatches(windows, 1, 1).batch_at(-1),
    ):
        with pytest.raises(OptionError):
            make()


def test_a_batch_moves_with_all_that_it_holds(counted: TokenStore) -> None:
    batch = all_of(Windows(counted, 8)).to("meta")
    assert batch.ids.is_meta
    assert batch.targets.is_meta
    plain = token_batch([[[1, 2]]], 3).to("meta")
    assert plain.following is None
    assert plain.labels.is_meta


@given(LENGTHS, st.floats(0.01, 0.99), st.booleans())
def test_a_split_by_share(lengths: list[int], share: float, whole_documents: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = store_of(Path(directory), np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]))
        try:
            train, held_out = split(store, share, whole_documents=whole_documents)
        except TargetError as error:
            assert "leaves one part empty" in str(error)
            return
        assert [*train.tokens.tolist(), *held_out.tokens.tolist()] == store.tokens.tolist()
        wanted = round(share * store.num_tokens)
        if whole_documents:
            assert train.num_tokens in store.starts.tolist()
            nearest = min(abs(start - (store.num_tokens - wanted)) for start in store.starts.tolist())
            assert abs(held_out.num_tokens - wanted) == nearest
        else:
            assert held_out.num_tokens == wanted


def test_a_split_by_documents(counted: TokenStore) -> None:
    train, held_out = split(counted, 2)
    assert held_out.tokens.tolist() == list(range(53, 100))
    assert (train.num_documents, held_out.num_documents) == (5, 2)
    assert split(counted, 2)[1].digest == held_out.digest
    for wrong in (0, -1, 0.0, 1.0, True, 1.5):
        with pytest.raises(OptionError, match=r"a share such as 0\.1, or a number of documents"):
            split(counted, wrong)
    for too_much in (7, 100):
        with pytest.raises(TargetError, match="leaves one part empty"):
            split(counted, too_much)


class SmallDecoder(nn.Module):
    """Predict tokens by two layers of attention with learned positions, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, 16), nn.Embedding(32, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.head = nn.Linear(16, VOCAB)
        self.double()

    def forward(self, batch: TokenBatch) -> Tensor:
        x = self.tokens(batch.ids) + self.places(batch.positions)
        for layer in self.qkv:
            q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in layer(x).chunk(3, -1))
            x = x + masked_attention(q, k, v, Documents(batch.documents)).transpose(1, 2).flatten(2)
        out: Tensor = self.head(x)
        return out


def random_documents(lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def alone(documents: Sequence[Sequence[int]], width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of each piece of each document, in a batch of its own, as nobody packs them."""
    for document in documents:
        for begin in range(0, len(document) - 1, width):
            piece = torch.tensor(document[begin : begin + width + 1])
            yield piece[None, :-1], piece[None, 1:]


@pytest.mark.parametrize("kind", ["decoder", "transformers"])
def test_the_loss_of_packed_rows_is_that_of_the_documents_alone(tmp_path: Path, kind: str) -> None:
    documents, width = random_documents([7, 3, 12, 1, 5, 16, 17, 18, 40, 2, 9, 0]), 16
    torch.manual_seed(0)
    model: Any = SmallDecoder() if kind == "decoder" else small_llama()

    def summed(batch: TokenBatch) -> float:
        with torch.no_grad():
            if kind == "transformers":
                return float(model(**batch.for_transformers(model)).loss.double()) * batch.num_valid
            logits = model(batch).flatten(0, 1)
            return float(F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"))

    rows = PackedRows(store_of(tmp_path, documents), width)
    steps = [rows.batch([index]) for index in range(len(rows))]
    packed, num_valid = sum(map(summed, [all_of(rows)])), all_of(rows).num_valid
    wanted = count = 0.0
    for ids, targets in alone(documents, width):
        places = torch.arange(ids.shape[1])[None]
        batch = TokenBatch(ids, places, torch.zeros_like(ids), torch.full_like(ids, IGNORED))
        with torch.no_grad():
            logits = model(batch) if kind == "decoder" else model(input_ids=ids, position_ids=places).logits
            wanted += float(F.cross_entropy(logits[0].double(), targets[0], reduction="sum"))
        count += targets.numel()
    assert num_valid == count == sum(max(0, len(document) - 1) for document in documents)
    # transformers computes rotary positions and the loss in float32
    assert packed / count == pytest.approx(wanted / count, rel=1e-9 if kind == "decoder" else 1e-6)
    assert sum(map(summed, steps)) / count == pytest.approx(wanted / count, rel=1e-9 if kind == "decoder" else 1e-6)


def small_llama() -> Any:
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
    return transformers.LlamaForCausalLM(config).double().eval()


@settings(max_examples=5)
@given(st.integers(0, 1000))
def test_windows_are_what_transformers_learns_from(seed: int) -> None:
    """The loss of a batch is the mean over all tokens, the one behind each window too."""
    model = small_llama()
    with tempfile.TemporaryDirectory() as directory:
        store = store_of(Path(directory), random_documents([65]))
        batch = TokenBatches(Windows(store, 16), 3, seed).batch_at(0)
        with torch.no_grad():
            found = model(**batch.for_transformers(model)).loss
            logits = model(input_ids=batch.ids).logits
        begins = [int((store.tokens == int(row[0])).argmax()) for row in batch.ids]
        assert batch.num_valid == 48
        assert len(begins) == 3
        wanted = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())
        torch.testing.assert_close(found, wanted)


@pytest.mark.realdata
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")
@pytest.mark.parametrize("width", [256, 512, 1024])
@pytest.mark.parametrize("separator", ["\n", "\n \n"], ids=["paragraphs", "sections"])
def test_little_is_padded_in_texts_of_others(tmp_path: Path, width: int, separator: str) -> None:
    library = tokenizers.ByteLevelBPETokenizer(
        str(DATA / "tokenizer/gpt2_vocab.json"), str(DATA / "tokenizer/gpt2_merges.txt")
    )
    path = DATA / "text/wikitext2-valid.txt"
    store = tokenised(path, library._tokenizer, cache=tmp_path, separator=separator, append_end=False)
    rows = PackedRows(store, width)
    assert rows.padding_share <= 0.02
    assert all_of(rows).num_valid == sum(max(0, length - 1) for length in np.diff(store.starts).tolist())
