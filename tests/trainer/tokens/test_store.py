"""A store gives back what was written into it, appears whole or not at all, and is known when it is damaged."""

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import largest_file
from hypothesis import given
from hypothesis import strategies as st
from token_stores import digest_of, documents_in

from whet.errors import OptionError, OutputError, TargetError
from whet.trainer.tokens import raw
from whet.trainer.tokens.store import StoreWriter, TokenStore, open_raw

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[list[int]], list[list[bool]] | None]:
    """A dtype, documents of ids that it can hold, and which of them are learnt."""
    dtype = draw(st.sampled_from(DTYPES))
    ids = st.integers(0, int(np.iinfo(dtype).max))
    found = draw(st.lists(st.lists(ids, max_size=9), max_size=8))
    masks = [[draw(st.booleans()) for _ in document] for document in found] if draw(st.booleans()) else None
    return dtype, found, masks


def write(directory: Path, dtype: str = "uint16", *docs: Any) -> TokenStore:
    with StoreWriter(directory, dtype) as writer:
        for document in docs:
            writer.append(document)
    return TokenStore.open(directory)


@given(documents())
def test_what_was_written_is_read(given_: tuple[str, list[list[int]], list[list[bool]] | None]) -> None:
    dtype, found, masks = given_
    flat = [one for document in found for one in document]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "store"
        with StoreWriter(place, dtype) as writer:
            for number, document in enumerate(found):
                writer.append(document, None if masks is None else masks[number])
        store = TokenStore.open(place)
        assert store.tokens.tolist() == flat
        assert store.dtype == np.dtype(dtype)
        assert (store.num_tokens, store.num_documents) == (len(flat), len(found))
        assert documents_in(store) == found
        assert store.largest_id == max(flat, default=-1)
        if masks is None or not found:
            assert store.trained is None
        else:
            assert store.trained is not None
            assert store.trained.tolist() == [int(one) for mask in masks for one in mask]
        assert digest_of(store) == store.digest
        again = pickle.loads(pickle.dumps(store))
        assert again.tokens.tolist() == flat
        assert again.digest == store.digest
        assert [path.name for path in Path(directory).iterdir()] == ["store"]


@given(documents(), st.integers(1, 7))
def test_blocks_that_end_anywhere_give_the_same_store(
    given_: tuple[str, list[list[int]], list[list[bool]] | None], size: int
) -> None:
    dtype, found, masks = given_
    flat = [one for document in found for one in document]
    mask = None if masks is None else [one for document in masks for one in document]
    ends = np.cumsum([0, *map(len, found)])[1:]
    with tempfile.TemporaryDirectory() as directory:
        for name, step in (("whole", max(1, len(flat))), ("blocks", size)):
            with StoreWriter(Path(directory) / name, dtype) as writer:
                done = 0
                for begin in range(0, max(1, len(flat)), step):
                    block = np.array(flat[begin : begin + step], np.uint64)
                    here = [int(end) - begin for end in ends[done:] if end <= begin + len(block)]
                    done += len(here)
                    writer.extend(block, here, None if mask is None else mask[begin : begin + step])
        whole, blocks = (TokenStore.open(Path(directory) / name) for name in ("whole", "blocks"))
        assert whole.starts.tolist() == [0, *ends.tolist()] == blocks.starts.tolist()
        assert whole.digest == blocks.digest


def test_the_digest_names_the_content(tmp_path: Path) -> None:
    stores = [
        write(tmp_path / "a", "uint16", [1, 2], [3]),
        write(tmp_path / "b", "uint16", [1], [2, 3]),
        write(tmp_path / "c", "uint32", [1, 2], [3]),
        write(tmp_path / "d", "uint16", [1, 2], [4]),
    ]
    with StoreWriter(tmp_path / "e", "uint16") as writer:
        writer.append([1, 2], [1, 1])
        writer.append([3])
    stores.append(TokenStore.open(tmp_path / "e"))
    assert stores[-1].trained is not None
    assert stores[-1].trained.tolist() == [1, 1, 1]
    assert len({store.digest for store in stores}) == len(stores)
    assert write(tmp_path / "f", "uint16", [1, 2], [3]).digest == stores[0].digest


def test_a_mask_that_comes_late_says_that_the_tokens_before_it_are_learnt(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", "uint8") as writer:
        writer.append([1, 2, 3])
        writer.append([4, 5], [False, True])
        writer.append([6])
        assert writer.num_trained == 5
    store = TokenStore.open(tmp_path / "store")
    assert store.trained is not None
    assert store.trained.tolist() == [1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokens.bin", b"\1\0\2", "tokens.bin has 3 bytes instead of 6; remove the directory and make the tokens anew"),
        ("starts.bin", b"", "starts.bin has 0 bytes instead of 24"),
        ("starts.bin", bytes(24), "starts.bin does not fit tokens.bin"),
        ("starts.bin", None, "starts.bin is missing"),
        ("header.json", b'{"form', "header.json is damaged: .*; remove the directory"),
        ("header.json", None, "has no header.json, so it holds no tokens|holds no tokens: it has no header.json"),
    ],
)
def test_a_damaged_store_is_found_when_it_is_opened(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    write(tmp_path / "store", "uint16", [1, 2], [3])
    path = tmp_path / "store" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(TargetError, match=message) as caught:
        TokenStore.open(tmp_path / "store")
    assert "\n" not in str(caught.value)


def test_other_versions_are_found(tmp_path: Path) -> None:
    store = write(tmp_path / "store", "uint16", [1, 2], [3])
    header = json.loads((tmp_path / "store/header.json").read_text())
    for change, message in (
        ({"version": 2}, "has version 2 of the format, and this whet reads 1"),
        ({"dtype": "float32"}, "header.json is damaged: tokens are integers"),
        ({"num_tokens": -1}, "header.json is damaged"),
    ):
        (tmp_path / "store/header.json").write_text(json.dumps(header | change))
        with pytest.raises(TargetError, match=message):
            TokenStore.open(store.place)


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="here"), StoreWriter(tmp_path / "a/store", "uint8") as writer:
        writer.append([1])
        raise RuntimeError("here")
    assert list((tmp_path / "a").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"), StoreWriter(tmp_path / "file/store", "uint8"):
        pass


@pytest.mark.parametrize("num_blocks", [1, 40])
def test_a_full_disk_leaves_nothing(tmp_path: Path, num_blocks: int) -> None:
    """The error comes when the file is written, or when it is closed."""
    with (
        pytest.raises(OutputError, match=r"cannot write .*store: File too large; free some space"),
        largest_file(1000),
        StoreWriter(tmp_path / "store", "uint32") as writer,
    ):
        for _ in range(num_blocks):
            writer.append(np.zeros(20_000, np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_an_equal_store_is_kept_and_another_one_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "store", "uint8", [1, 2])
    inode = (tmp_path / "store").stat().st_ino
    assert write(tmp_path / "store", "uint8", [1, 2]).digest == store.digest
    assert (tmp_path / "store").stat().st_ino == inode
    with pytest.raises(OutputError, match="holds something else already; name another directory"):
        write(tmp_path / "store", "uint8", [1, 3])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine").write_text("")
    with pytest.raises(OutputError, match="holds something else already"):
        write(tmp_path / "other", "uint8", [1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "ids", "kind", "message"),
    [
        ("uint8", None, [256], TargetError, "token id 256 does not fit into uint8; name a wider dtype"),
        ("int8", None, [128], TargetError, "does not fit into int8"),
        ("int64", None, [2**63], TargetError, "does not fit into int64"),
        ("uint16", 100, [5, 100], TargetError, "token id 100 is outside the vocabulary of 100"),
        ("int16", None, [3, -1], TargetError, "token ids are 0 or more; got -1"),
        ("uint8", None, [0.5], OptionError, "one row of integers; got float64"),
        ("uint8", None, [[1]], OptionError, r"one row of integers; got int64 of shape \(1, 1\)"),
        ("uint8", None, ["a"], OptionError, "one row of integers"),
        ("uint64", None, [2**64], OptionError, "one row of integers"),
    ],
)
def test_ids_that_cannot_be_are_refused(
    tmp_path: Path, dtype: str, vocab_size: int | None, ids: Any, kind: type[Exception], message: str
) -> None:
    with (
        pytest.raises(kind, match=message),
        StoreWriter(tmp_path / "store", dtype, vocab_size=vocab_size) as writer,
    ):
        writer.append(ids)
    assert list(tmp_path.iterdir()) == []


def test_wrong_masks_ends_and_dtypes_are_refused(tmp_path: Path) -> None:
    for wrong in ("float32", "nothing", object):
        with pytest.raises(OptionError, match="tokens are integers, such as uint16"):
            StoreWriter(tmp_path / "store", wrong)
    with StoreWriter(tmp_path / "store", "uint8") as writer:
        with pytest.raises(OptionError, match="one number for each of the 2 ids"):
            writer.append([1, 2], [1])
        for ends in ([3], [-1], [2, 1]):
            with pytest.raises(OptionError, match="ends must rise and lie within the 2 ids"):
                writer.extend([1, 2], ends)
        writer.append([2**8 - 1])
    assert TokenStore.open(tmp_path / "store").tokens.tolist() == [255]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_a_view_is_a_store_of_its_tokens(lengths: list[int], data: st.DataObject) -> None:
    found = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
    with tempfile.TemporaryDirectory() as directory:
        store = write(Path(directory) / "store", "uint16", *found)
        first = data.draw(st.integers(0, store.num_tokens))
        last = data.draw(st.integers(first, store.num_tokens))
        view = store.view(first, last)
        assert view.tokens.tolist() == list(range(first, last))
        within = [[one for one in document.tolist() if first <= one < last] for document in found]
        assert [one for one in documents_in(view) if one] == [one for one in within if one]
        again = pickle.loads(pickle.dumps(view))
        assert again.tokens.tolist() == view.tokens.tolist()
        assert again.starts.tolist() == view.starts.tolist()
        assert (view.digest == store.view(0, store.num_tokens).digest) == ((first, last) == (0, store.num_tokens))
        for wrong in ((-1, 1), (1, 0), (0, store.num_tokens + 1)):
            with pytest.raises(OptionError, match="do not lie within"):
                store.view(*wrong)


def test_a_model_with_a_smaller_vocabulary_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path / "store", "uint8", [1, 7, 3])
    store.check_fits(8)
    with pytest.raises(TargetError, match="ids up to 7, and the model knows 7"):
        store.check_fits(7)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), min_size=1, max_size=30), st.none() | st.integers(0, 5))
def test_files_of_other_programs(dtype: str, ids: list[int], end_id: int | None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        own, cache = Path(directory) / "own", Path(directory) / "cache"
        own.mkdir()
        np.save(own / "a.npy", np.array(ids, dtype))
        np.array(ids, dtype).tofile(own / "a.bin")
        wanted: list[list[int]] = [[]]
        for one in ids:
            wanted[-1].append(one)
            if one == end_id:
                wanted.append([])
        wanted = wanted if wanted[-1] else wanted[:-1]
        for name in ("a.npy", "a.bin"):
            store = open_raw(own / name, dtype=None if name == "a.npy" else dtype, end_id=end_id, cache=cache)
            assert documents_in(store) == wanted
            assert (store.largest_id, store.vocab_size, store.trained) == (max(ids), None, None)
            again = pickle.loads(pickle.dumps(store))
            assert again.tokens.tolist() == ids
            assert again.starts.tolist() == store.starts.tolist()
        assert sorted(path.name for path in own.iterdir()) == ["a.bin", "a.npy"], (
            "nothing is put beside the user's file"
        )


def test_what_was_found_in_a_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.bin"
    np.array([1, 0, 2, 0], np.uint16).tofile(path)
    monkeypatch.setattr(raw, "_BLOCK", 3)  # so that a document lies in two blocks
    first = open_raw(path, dtype="uint16", end_id=0, cache=tmp_path / "cache")
    assert first.starts.tolist() == [0, 2, 4]
    with monkeypatch.context() as patched:
        patched.setattr(raw, "_looked_through", None)
        assert open_raw(path, dtype="uint16", end_id=0, cache=tmp_path / "cache").starts.tolist() == [0, 2, 4]
    (first.place / "starts.bin").write_bytes(b"")
    assert open_raw(path, dtype="uint16", end_id=0, cache=tmp_path / "cache").starts.tolist() == [0, 2, 4]
    np.array([1, 0, 2, 2, 2], np.uint16).tofile(path)
    changed = open_raw(path, dtype="uint16", end_id=0, cache=tmp_path / "cache")
    assert changed.starts.tolist() == [0, 2, 5]
    assert changed.digest != first.digest


def test_files_that_are_no_tokens_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "square.npy", np.zeros((2, 2), np.int32))
    np.save(tmp_path / "real.npy", np.zeros(2))
    np.save(tmp_path / "big.npy", np.zeros(2, ">i4"))
    np.save(tmp_path / "negative.npy", np.array([3, 1, -1], np.int16))
    np.save(tmp_path / "none.npy", np.zeros(0, np.int16))
    np.save(tmp_path / "short.npy", np.zeros(100, np.int16))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:150])
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "none.bin").write_bytes(b"")
    (tmp_path / "text.txt").write_text("abc")
    for name, dtype, kind, message in (
        ("square.npy", None, TargetError, r"holds int32 of shape \(2, 2\); tokens are one row of integers"),
        ("real.npy", None, TargetError, "holds float64"),
        ("big.npy", None, TargetError, "is big endian; save it as <i4"),
        ("negative.npy", None, TargetError, "holds -1 as token 2; token ids are 0 or more"),
        ("negative.npy", "uint16", OptionError, "holds int16, and dtype says uint16; leave dtype out"),
        ("none.npy", None, TargetError, "holds no tokens"),
        ("none.bin", "uint8", TargetError, "holds no tokens"),
        ("short.npy", None, TargetError, "cannot be read as a NumPy array of tokens"),
        ("odd.bin", "uint16", TargetError, "has 3 bytes, which is no whole number of uint16 tokens"),
        ("odd.bin", None, OptionError, "name their dtype, such as uint16"),
        ("odd.bin", "float32", OptionError, "tokens are integers"),
        ("missing.bin", "uint8", TargetError, "there is no file .*missing.bin"),
        (".", None, TargetError, "is a directory"),
        ("text.txt", None, TargetError, "it reads .npy and .bin"),
    ):
        with pytest.raises(kind, match=message):
            open_raw(tmp_path / name, dtype=dtype, cache=tmp_path / "cache")
