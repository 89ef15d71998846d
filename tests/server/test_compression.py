"""A text that would fit is never refused by its length, whatever the tokenizer does to it."""

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from whet.server.compression import bytes_per_token
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

BYTES = pre_tokenizers.ByteLevel.alphabet()
WORDS = ["h", "e", "l", "o", "he", "ll", "hell", "hello"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]


def byte_level(**options: Any) -> tokenizers.Tokenizer:
    names = [*sorted(BYTES), *(word for word in WORDS if word not in BYTES)]
    made = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, MERGES, **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def byte_fallback(normalizer: Any = None) -> tokenizers.Tokenizer:
    names = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *WORDS, "\u2581"]
    vocabulary = {name: i for i, name in enumerate(names)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    made.normalizer = normalizers.Sequence([normalizer, *steps] if normalizer else steps)
    return made


def with_normalizer(normalizer: Any) -> tokenizers.Tokenizer:
    made = byte_level()
    made.normalizer = normalizer
    return made


def with_split(behavior: str) -> tokenizers.Tokenizer:
    made = byte_level()
    split = pre_tokenizers.Split(Regex(r"\\s+"), behavior)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return made


def with_added(token: AddedToken) -> tokenizers.Tokenizer:
    made = byte_level()
    made.add_special_tokens([token])
    return made


BOUNDED: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "byte fallback": byte_fallback,
    "NFC": lambda: with_normalizer(normalizers.NFC()),
    "NFKC": lambda: byte_fallback(normalizers.NFKC()),
    "lower case": lambda: with_normalizer(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "split": lambda: with_split("isolated"),
    "added": lambda: with_added(AddedToken("<|a long one|>", special=True)),
}
UNBOUNDED: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "WordPiece": lambda: tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
    "WordLevel": lambda: tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")),
    "Unigram": lambda: tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)),
    "BPE that drops what it does not know": lambda: tokenizers.Tokenizer(models.BPE({"a": 0}, [])),
    "strip": lambda: with_normalizer(normalizers.Strip()),
    "accents": lambda: with_normalizer(normalizers.StripAccents()),
    "removing": lambda: with_normalizer(normalizers.Replace("ab", "")),
    "removing by pattern": lambda: with_normalizer(normalizers.Replace(Regex(" +"), " ")),
    "splitting off": lambda: with_split("removed"),
    "an added token that takes spaces": lambda: with_added(AddedToken("<m>", lstrip=True)),
}
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=5),
        st.sampled_from(
            ["hello", " ", "<|a long one|>", "\u212b", "\U0001d400", "A\u030a", "\u1f82", "\uff21", "\u212a"]
        ),
        st.builds(lambda c, n: c * n, st.characters(codec="utf-8"), st.integers(1, 20)),
    ),
    max_size=20,
).map("".join)


@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_has_more_bytes_than_its_tokens_may(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("tokenizer")
    BOUNDED[name]().save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer(directory)

    @given(TEXTS)
    def check(text: str) -> None:
        most = tokenizer.most_bytes(len(tokenizer.encode(text)))
        assert most is not None
        assert len(text.encode()) <= most

    check()
    for text in (
        "hello" * 50,
        "<|a long one|>" * 9,
        unicodedata.normalize("NFD", "\u1f82\uac01" * 40),
        "\U0001d400" * 30,
    ):
        most = tokenizer.most_bytes(len(tokenizer.encode(text)))
        assert most is not None
        assert len(text.encode()) <= most


@pytest.mark.parametrize("name", UNBOUNDED)
def test_there_is_no_bound_where_text_is_lost(name: str, tmp_path: Path) -> None:
    UNBOUNDED[name]().save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).most_bytes(5) is None


@pytest.mark.parametrize(("form", "factor"), [("NFC", 3), ("NFKC", 12), ("NFKD", 4)])
def test_how_much_normalisation_shrinks(form: Any, factor: int) -> None:
    """Each character alone; what composes is longest as its canonical parts."""
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000:
            continue
        for text in {chr(code), unicodedata.normalize("NFD", chr(code))}:
            assert len(text.encode()) <= factor * len(unicodedata.normalize(form, text).encode()), hex(code)


def test_the_built_in_model_has_a_bound() -> None:
    tokenizer = Tokenizer(WEIGHTS / "docs-gpt")
    longest = max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size))
    assert tokenizer.most_bytes(1) == longest


def test_what_is_damaged_has_none() -> None:
    assert bytes_per_token({}) is None
    assert bytes_per_token({"model": {"type": "BPE", "vocab": {"a": 0}}, "normalizer": {"type": "New"}}) is None
