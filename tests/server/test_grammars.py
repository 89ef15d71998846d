"""Structures compiled: what is kept, what is refused, and vocabularies of other kinds."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from guided import PERSON, TOKENIZER, VOCAB
from tokenizers import decoders, models, pre_tokenizers, trainers

import whet
from whet.errors import RequestError
from whet.server import grammars
from whet.server.detokenizer import MarkedDetokenizer
from whet.server.grammars import Grammars
from whet.server.output_constraint import MAX_CHARACTERS, OutputConstraint
from whet.server.text import Tokenizer


def test_it_is_public() -> None:
    assert whet.OutputConstraint is OutputConstraint


def test_a_structure_is_compiled_once_and_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_MOST_KEPT", 2)
    store = Grammars(TOKENIZER, VOCAB)
    compiled: list[str] = []
    compile_anew = store._compile

    def counted(structure: OutputConstraint) -> Any:
        compiled.append(structure.text)
        return compile_anew(structure)

    monkeypatch.setattr(store, "_compile", counted)
    for pattern in ("a", "b", "a", "c", "a", "b"):
        store.guide(OutputConstraint.regex(pattern))
    assert compiled == ["a", "b", "c", "b"], "b went when c came, as a was used since"


def test_what_is_kept_does_not_keep_the_vocabulary_alive() -> None:
    store = Grammars(TOKENIZER, VOCAB)
    store.guide(OutputConstraint.regex("a"))
    gone = weakref.ref(store)
    gc.disable()
    try:
        del store
        assert gone() is None
    finally:
        gc.enable()


def test_two_requests_do_not_share_their_place() -> None:
    store, structure = Grammars(TOKENIZER, VOCAB), OutputConstraint.regex("ab")
    first, second = store.guide(structure), store.guide(structure)
    a, b = TOKENIZER.encode("a", False)[0], TOKENIZER.encode("b", False)[0]
    whole = TOKENIZER.encode("ab", False)
    assert first.num_valid(whole) == len(whole)
    if whole == [a, b]:
        assert not first.consume(a)
    else:
        assert first.consume(whole[0])
    assert second.num_valid(whole) == len(whole)
    with pytest.raises(RequestError, match="the structure cannot go on"):
        second.consume(TOKENIZER.encode("x", False)[0])


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (OutputConstraint.json_schema(False), "no value is valid by it"),
        (OutputConstraint.json_schema({"$ref": "http://example.com/x"}), "is in another document"),
        (OutputConstraint.json_schema("{"), "it is not JSON"),
        (OutputConstraint.json_schema("5"), "the JSON schema cannot be enforced"),
        (OutputConstraint.json_schema(PERSON, "("), "unclosed group"),
        (OutputConstraint.regex(r"(a)\1"), "backreferences are not supported"),
        (OutputConstraint.regex("a" * (MAX_CHARACTERS + 1)), f"{MAX_CHARACTERS} is the most"),
        (OutputConstraint.regex(""), "not empty"),
        (OutputConstraint.grammar("root ::= other"), "Rule 'other' not found"),
        (OutputConstraint.grammar("start: nothing"), "the grammar cannot be enforced"),
        (OutputConstraint.choice([]), "at least one text"),
        (OutputConstraint("choice", "5"), "at least one text"),
        (OutputConstraint("xml", "a"), "structure.kind='xml': write one of json_schema"),  # type: ignore[arg-type]
        (OutputConstraint("regex", "a", " "), "only for JSON"),
    ],
)
def test_what_cannot_be_enforced(structure: OutputConstraint, message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("(", r"\(")) as refused:
        Grammars(TOKENIZER, VOCAB).guide(structure)
    assert refused.value.param == "structure"
    assert len(str(refused.value)) < 700


def test_what_is_no_json() -> None:
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        OutputConstraint.json_schema({"enum": [float("nan")]})
    with pytest.raises(RequestError, match=r"it is a whet\.OutputConstraint"):
        whet.SamplingParams(structure="a").check(VOCAB)  # type: ignore[arg-type]


def test_a_huge_schema_is_refused_or_compiled_in_bounded_time() -> None:
    """Fuel is what bounds the time: a schema that needs more of it is refused."""
    branches = [{"type": "string", "pattern": f"^(a|b|{i}){{1,400}}c{{1,300}}$"} for i in range(300)]
    store = Grammars(TOKENIZER, VOCAB)
    with pytest.raises(RequestError, match="cannot be enforced"):
        store.guide(OutputConstraint.json_schema({"anyOf": branches, "allOf": [{"anyOf": branches}]}))


def metaspace(directory: Path) -> Tokenizer:
    """A tokenizer as SentencePiece's: a space before a text, bytes for rare characters, special tokens in texts."""
    marks = ["<unk>", "<s>", "</s>"]
    described = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    described.pre_tokenizer = pre_tokenizers.Metaspace()
    described.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    texts = ['{"name": "hello world", "arguments": {}} [1, 2] yes no'] * 5
    initial = marks + [f"<0x{byte:02X}>" for byte in range(256)]
    described.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=initial, show_progress=False)
    )
    content = json.loads(described.to_str())
    content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] in marks]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return Tokenizer(directory)


@pytest.mark.parametrize(
    ("structure", "texts"),
    [
        (OutputConstraint.choice(["{", "yes no", " yes"]), {"{", "yes no", " yes"}),
        (OutputConstraint.choice(["<s>", "</s>x"]), {"<s>", "</s>x"}),
        (OutputConstraint.regex("hello world"), {"hello world"}),
        (OutputConstraint.regex("é🙂"), {"é🙂"}),
    ],
)
def test_a_vocabulary_with_spaces_before_words(tmp_path: Path, structure: OutputConstraint, texts: set[str]) -> None:
    """Any walk through the allowed tokens ends in one of the texts."""
    tokenizer = metaspace(tmp_path)
    store, generator = Grammars(tokenizer, tokenizer.vocab_size + 7), np.random.default_rng(0)
    seen = set()
    for _ in range(30):
        guide, output, is_complete = store.guide(structure), list[int](), False
        while not is_complete:
            mask = np.unpackbits(np.frombuffer(guide.matcher.compute_bitmask(), np.uint8), bitorder="little")
            output.append(int(generator.choice(np.flatnonzero(mask[: tokenizer.vocab_size]))))
            is_complete = guide.consume(output[-1])
        detokenizer = tokenizer.byte_detokenizer()
        seen.add(detokenizer.add(output) + detokenizer.finish())
    assert seen == texts


class Alphabet:
    """A vocabulary of small letters, and of nothing else."""

    special_ids = frozenset({26})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([97 + token_id])

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [min(abs(ord(letter) - 97), 26) for letter in text]


def test_what_no_token_can_write() -> None:
    store = Grammars(Alphabet(), 27)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="no token of the model's vocabulary can stand"):
        store.guide(OutputConstraint.json_object())
    guide = store.guide(OutputConstraint.regex(r"ab\{"))
    assert not guide.consume(0)
    assert not guide.consume(1)
    guide.matcher.compute_bitmask()
    assert guide.has_failed()
    assert guide.error == "the structure cannot go on: no token of the model's vocabulary can stand where it goes on"


def test_an_output_that_can_only_stop_in_the_midst_is_no_success() -> None:
    guide = Grammars(TOKENIZER, VOCAB).guide(OutputConstraint.regex("ab"))
    guide.matcher = StoppedEarly()
    with pytest.raises(RequestError, match="nothing can follow, and it is not complete"):
        guide.consume(0)


class StoppedEarly:
    """A matcher that finds nothing that could follow."""

    def consume_token(self, token_id: int) -> bool:
        return True

    def is_stopped(self) -> bool:
        return True

    def is_accepting(self) -> bool:
        return False


def test_shown_special_tokens_stand_between_texts() -> None:
    first = TOKENIZER.encode("é", False)
    marked = MarkedDetokenizer(TOKENIZER.detokenizer, {0: "[CALL]"})
    assert marked.add([*first, 0]) == "é[CALL]"
    assert marked.add(first[:1]) == ""
    assert marked.add([0]) == "\ufffd[CALL]", "half a character ends where the mark begins"
    assert marked.add(first) + marked.finish() == "é"
