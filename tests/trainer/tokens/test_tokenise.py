"""Files become tokens once for each content; what fails leaves nothing; two processes do each other no harm."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from full_disk import largest_file
from some_tokenizers import KNOWN
from token_stores import digest_of, documents_in

from whet.errors import OptionError, OutputError, TargetError
from whet.measure.machine.cache import cache_dir
from whet.trainer.tokens import file_digests, tokenise
from whet.trainer.tokens.encoding import Encoder
from whet.trainer.tokens.store import TokenStore
from whet.trainer.tokens.tokenise import characters_of, tokenised
from whet.trainer.tokens.tokenizer import load_tokenizer

DATA = Path(__file__).parents[4] / "shared/data"
LONG_AGO = 1_600_000_000


def written(path: Path, text: str = "one two\nthree", *, at: float = LONG_AGO) -> Path:
    path.write_text(text)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def stores_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if "tokens-" in path.name)


def test_documents_and_their_ends(tmp_path: Path, cache: Path) -> None:
    loaded = load_tokenizer("bytes")
    path = written(tmp_path / "a.txt", "ab\n\nc\n\n\n\nd")
    store = tokenised(path, loaded, cache=cache, separator="\n\n")
    assert documents_in(store) == [[97, 98, 256], [99, 256], [100, 256]]
    assert (store.dtype, store.vocab_size, store.largest_id, store.trained) == (np.uint16, 257, 256, None)
    store = tokenised([path, path], loaded.tokenizer, cache=cache, append_end=False)
    assert bytes(store.tokens.astype(np.uint8)) == path.read_bytes() * 2
    assert store.num_documents == 2
    records = tmp_path / "a.jsonl"
    records.write_text('{"body": "x"}\n{"body": "y"}')
    assert tokenised(records, loaded, cache=cache, text_key="body").tokens.tolist() == [120, 256, 121, 256]


def test_a_store_is_found_again_by_its_content(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_tokenizer("bytes")
    path = written(tmp_path / "a.txt")
    first = tokenised(path, loaded, cache=cache)
    written(tmp_path / "copy.txt")
    monkeypatch.setattr(Encoder, "blocks", None)
    assert tokenised(tmp_path / "copy.txt", loaded, cache=cache).place == first.place, "the name does not matter"
    monkeypatch.setattr(file_digests.hashlib, "file_digest", None)
    assert tokenised(path, loaded, cache=cache).place == first.place, "the file is not read again"
    assert tokenised(path, load_tokenizer("bytes"), cache=cache).digest == first.digest


def test_another_content_tokenizer_or_option_makes_another_store(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.txt", "one two\none")
    loaded, other = load_tokenizer("bytes"), load_tokenizer("characters", ["one tw\n"])
    places = {
        tokenised(path, loaded, cache=cache).place,
        tokenised(path, other, cache=cache).place,
        tokenised(path, loaded, cache=cache, separator="\n").place,
        tokenised(path, loaded, cache=cache, append_end=False).place,
        tokenised([path, path], loaded, cache=cache).place,
    }
    written(path, "one two\ntwo")  # of the same size, with the same time
    places.add(tokenised(path, loaded, cache=cache).place)
    assert len(places) == len(stores_in(cache)) == 6


def test_a_file_that_was_just_written_is_hashed_again(tmp_path: Path, cache: Path) -> None:
    """Another write may fall into the same moment of the file system's clock."""
    path = written(tmp_path / "a.txt", "one", at=time.time())
    before = file_digests.file_digest(path, cache)
    assert not (cache / "files").exists()
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert file_digests.file_digest(path, cache) == before
    (note,) = (cache / "files").iterdir()
    known = json.loads(note.read_text())
    note.write_text(json.dumps(known | {"sha256": "remembered"}))
    assert file_digests.file_digest(path, cache) == "remembered"
    for damage in ("{", "[]", json.dumps(known | {"sha256": 3}), json.dumps(known | {"identity": {}})):
        note.write_text(damage)
        assert file_digests.file_digest(path, cache) == before


def test_a_damaged_store_is_made_anew(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, loaded = written(tmp_path / "a.txt"), load_tokenizer("bytes")
    store = tokenised(path, loaded, cache=cache)
    (store.place / "tokens.bin").write_bytes(b"abc")
    with caplog.at_level(logging.WARNING, "whet"):
        again = tokenised(path, loaded, cache=cache)
    assert "tokens.bin has 3 bytes instead of 28; remove the directory" in caplog.text
    assert digest_of(again) == again.digest == store.digest


def test_what_an_ended_process_left_is_removed(tmp_path: Path, cache: Path) -> None:
    path, loaded = written(tmp_path / "a.txt"), load_tokenizer("bytes")
    store = tokenised(path, loaded, cache=cache)
    left = cache / f".{store.place.name}.1234abcd"
    store.place.rename(left)
    tokenised(path, loaded, cache=cache)
    assert stores_in(cache) == [store.place.name]


def test_whets_cache_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "home"))
    store = tokenised(written(tmp_path / "a.txt"), load_tokenizer("bytes"))
    assert store.place.parent == cache_dir() / "tokens" == tmp_path / "home/tokens"


MAKE = """
import hashlib
import sys
from pathlib import Path
from whet.trainer.tokens.tokenise import tokenised
from whet.trainer.tokens.tokenizer import load_tokenizer
store = tokenised(Path(sys.argv[1]), load_tokenizer("bytes"), cache=Path(sys.argv[2]))
content = [hashlib.sha256(row).hexdigest() for row in (store.tokens, store.starts)]
print(store.digest, store.place.stat().st_ino, *content)
"""


def test_two_processes_at_once(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.txt", "one two " * 200_000)
    command = [sys.executable, "-c", MAKE, str(path), str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(set(found)) == 1, "the second one waited for the first"
    (place,) = stores_in(cache)
    store = TokenStore.open(cache / place)
    assert digest_of(store) == store.digest == found[0].split()[0]


def test_a_full_disk_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path, loaded = written(tmp_path / "a.txt", "one two " * 2000), load_tokenizer("bytes")
    with pytest.raises(OutputError, match="File too large; free some space"), largest_file(10_000):
        tokenised(path, loaded, cache=cache)
    assert stores_in(cache) == []
    assert tokenised(path, loaded, cache=cache).num_tokens == 16_001


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, loaded, blocks = written(tmp_path / "a.txt"), load_tokenizer("bytes"), Encoder.blocks

    def change(encoder: Encoder, parts: Any) -> Any:
        yield from blocks(encoder, parts)
        path.write_text("another")

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "blocks", change)
        with pytest.raises(TargetError, match="a file of the text changed while it was read; try again"):
            tokenised(path, loaded, cache=cache)
    assert stores_in(cache) == []


def test_files_and_tokenizers_that_do_not_fit(tmp_path: Path, cache: Path) -> None:
    loaded = load_tokenizer("bytes")
    empty, text = written(tmp_path / "empty.txt", ""), written(tmp_path / "a.txt", "az")
    (tmp_path / "file").write_text("")
    bare = tokenizers.Tokenizer.from_str(loaded.tokenizer.to_str().replace("<|endoftext|>", "<nothing>"))
    for files, tokenizer, options, kind, message in (
        ([empty, empty], loaded, {}, TargetError, "there is no text in .*empty.txt, .*empty.txt"),
        (tmp_path / "missing.txt", loaded, {}, TargetError, "there is no file .*missing.txt; check the path"),
        (tmp_path, loaded, {}, TargetError, "is a directory; name the files in it|whet knows"),
        (text, loaded, {"vocab_size": 122}, TargetError, "token id 256 is outside the vocabulary of 122|122"),
        (text, bare, {}, TargetError, r"names no token that ends a text: .*\(append_end=False\)"),
        (text, loaded, {"cache": tmp_path / "file/cache"}, OutputError, "cannot make the directory"),
        ([], loaded, {}, OptionError, "name one file of text or more"),
    ):
        with pytest.raises(kind, match=message):
            tokenised(files, tokenizer, **({"cache": cache} | options))  # type: ignore[arg-type]
    own = tokenizers.Tokenizer.from_str(loaded.tokenizer.to_str())
    own.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(object())
    with pytest.raises(TargetError, match=r"cannot be written as a tokenizer\.json.*Custom PreTokenizer"):
        tokenised(text, own, cache=cache)
    assert stores_in(cache) == []
    assert tokenised(text, bare, cache=cache, append_end=False, vocab_size=123).tokens.tolist() == [97, 122]
    with pytest.raises(TargetError, match="the tokens have ids up to 122, and the model knows 122"):
        tokenised(text, bare, cache=cache, append_end=False, vocab_size=122)


def test_the_characters_of_files_are_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = written(tmp_path / "a.txt", "cab\n")
    records = tmp_path / "a.jsonl"
    records.write_text(
        json.dumps({"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "!"}]})
    )
    os.utime(records, (LONG_AGO, LONG_AGO))
    wanted = "".join(sorted(set("cab\nUser: é\nAssistant: !")))
    assert characters_of([text, records], cache=cache) == wanted
    monkeypatch.setattr(tokenise.Sources, "parts", None)
    assert characters_of([text, records], cache=cache) == wanted
    assert load_tokenizer("characters", wanted).tokenizer.encode("\nA").ids == [0, wanted.index("A")]


@pytest.mark.realdata
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")
@pytest.mark.parametrize("name", ["wikitext2-valid", "tinyshakespeare"])
@pytest.mark.parametrize("width", [64, 1 << 15])
def test_texts_of_others_with_gpt2(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    """In pieces of 64 characters there are some 15,000 cuts."""
    library = tokenizers.ByteLevelBPETokenizer(
        str(DATA / "tokenizer/gpt2_vocab.json"), str(DATA / "tokenizer/gpt2_merges.txt")
    )
    library.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("whet.trainer.tokens.encoding.PIECE", width)
    loaded, path = load_tokenizer(tmp_path), DATA / f"text/{name}.txt"
    store = tokenised(path, loaded, cache=cache, append_end=False)
    whole = loaded.tokenizer.encode(path.read_bytes().decode(), add_special_tokens=False).ids
    assert np.array_equal(store.tokens, whole)
    assert store.dtype == np.uint16


def test_all_kinds_of_tokenizers(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.txt", "the one, two\nthree 's 12 a b\n\nan end. " * 30)
    for make in KNOWN.values():
        library = make()
        store = tokenised(path, library, cache=cache, append_end=False)
        assert store.tokens.tolist() == library.encode(path.read_text(), add_special_tokens=False).ids
