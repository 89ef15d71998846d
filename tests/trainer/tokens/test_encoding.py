"""Texts that are cut, and read in any parts, have the tokens of the whole, as the tokenizers library gives them."""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_tokenizers import CORPUS, KNOWN, UNKNOWN

from whet.trainer.tokens import encoding
from whet.trainer.tokens.direct import described_by, direct_encoder
from whet.trainer.tokens.documents import Part
from whet.trainer.tokens.encoding import Encoder, cut

TOKENIZERS = {name: make() for name, make in KNOWN.items()}
# What expressions treat in ways of their own, beside words that the tokenizers know.
BITS = (
    *("a", "b", "the", "one", " ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "'S", "'", "1", "1234", "."),
    *("!", "/", "-", "é", "e\u0301", "\u0301", "日", "本", "ひ", "한", "ᄒ", "ᅡ", "ǅ", "ͺ", "½", "Ⅷ", "_"),
    *("<|endoftext|>", "<|end", "İ", "Σ", "\xa0", "\u3000", "\u2028", "\x1c", "\x85", "▁", "Ġ", "\u200d"),
    *("🙂", "one two", ".\nthe", "a b\nthe one"),
)
TEXTS = st.lists(st.sampled_from(BITS), max_size=30).map("".join)


def tokens_of(tokenizer: Any, parts: Sequence[Part], end_id: int | None = None) -> list[list[int]]:
    """The documents' tokens."""
    found: list[list[int]] = [[]]
    for block in Encoder(tokenizer, end_id).blocks(parts):
        for begin, end in pairwise([0, *block.ends]):
            found[-1] += block.ids[begin:end].tolist()
            found.append([])
        found[-1] += block.ids[block.ends[-1] if block.ends else 0 :].tolist()
    assert found[-1] == [], "the last document ends with the text"
    return found[:-1]


@pytest.fixture(params=KNOWN)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PIECE", 4)
    monkeypatch.setattr(encoding, "_LEAST_BLOCK", 64)
    monkeypatch.setattr(encoding, "_PIECES_PER_CORE", 1)


@pytest.mark.usefixtures("short_pieces")
def test_a_text_that_is_cut_has_the_tokens_of_the_whole(tokenizer: Any) -> None:
    @given(TEXTS, st.lists(st.integers(1, 40), max_size=6))
    def check(text: str, widths: list[int]) -> None:
        bounds = [0, *(sum(widths[: i + 1]) for i in range(len(widths))), len(text)]
        parts = [Part(text[begin:end]) for begin, end in pairwise(bounds)]
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokens_of(tokenizer, [*parts, Part("", ends_document=True)]) == ([wanted] if wanted else [])

    check()


@pytest.mark.usefixtures("short_pieces")
def test_texts_are_cut_indeed(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, None)
    assert not encoder.cutter.reason
    text = "one two " * 40
    pieces = list(cut([Part(text, ends_document=True)], encoder.cutter))
    assert len(pieces) > 20
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_encoded_in_one_piece(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, why = UNKNOWN[name]
    tokenizer = make()
    text = "one two a b\nthe one " * 5
    with pytest.MonkeyPatch.context() as patched, caplog.at_level(logging.WARNING, logger="whet"):
        patched.setattr(encoding, "PIECE", 4)
        patched.setattr(encoding, "_LARGE", 50)
        found = tokens_of(tokenizer, [Part(text[:33]), Part(text[33:], ends_document=True)])
    assert found == [tokenizer.encode(text, add_special_tokens=False).ids]
    assert why in caplog.text
    assert "100 characters of text are encoded in one piece" in caplog.text


@given(st.lists(TEXTS, max_size=6), st.booleans())
def test_documents_end_with_an_end_of_text(texts: list[str], has_end: bool) -> None:
    tokenizer = TOKENIZERS["GPT-2"]
    end = tokenizer.token_to_id("<|endoftext|>")
    parts = [Part(text, ends_document=True, has_end=has_end) for text in texts]
    wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts if text]
    assert tokens_of(tokenizer, parts, end) == [ids if has_end else [*ids, end] for ids in wanted]
    assert tokens_of(tokenizer, parts) == wanted


def test_segments_are_encoded_one_by_one_and_say_what_is_learnt() -> None:
    tokenizer = TOKENIZERS["GPT-2"]
    end = tokenizer.token_to_id("<|endoftext|>")
    texts = [("the o", False), ("ne", True), (" two", False)]
    parts = [Part(text, learnt, number == 2) for number, (text, learnt) in enumerate(texts)]
    (block,) = Encoder(tokenizer, end).blocks([*parts, Part("one", ends_document=True)])
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text, _ in texts]
    last = tokenizer.encode("one").ids
    assert block.ids.tolist() == [*ids[0], *ids[1], *ids[2], end, *last, end]
    assert block.trained is not None
    assert block.trained.tolist() == [0] * len(ids[0]) + [1] * len(ids[1]) + [0] * (len(ids[2]) + 1) + [1] * len(
        last
    ) + [1]
    assert block.ends == [sum(map(len, ids)) + 1, len(block.ids)]


@pytest.mark.parametrize("name", ["characters", "bytes"])
def test_a_table_gives_the_tokens_of_the_tokenizer(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    encode = direct_encoder(tokenizer, described_by(tokenizer))
    assert encode is not None

    @given(st.text() | TEXTS)
    def check(text: str) -> None:
        assert np.array_equal(encode(text), tokenizer.encode(text, add_special_tokens=False).ids)

    check()
    assert all(
        direct_encoder(one, described_by(one)) is None
        for other, one in TOKENIZERS.items()
        if other not in ("characters", "bytes")
    )


def test_the_bits_hold_what_the_tokenizers_know() -> None:
    ids = TOKENIZERS["GPT-2"].encode(CORPUS[0]).ids
    assert len(ids) < len(CORPUS[0]) / 2, "there are merges"
