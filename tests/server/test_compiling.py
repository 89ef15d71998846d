"""Trials of structures in child processes, whose crashes do not reach the server."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pytest
from guided import TOKENIZER, VOCAB

from whet.errors import RequestError
from whet.server import compiling
from whet.server.compiling import tried
from whet.server.grammars import Grammars
from whet.server.isolated_process import ChildEnded, IsolatedProcess
from whet.server.output_constraint import OutputConstraint

DESCRIBED: dict[str, object] = {"size": 300, "special": {"299": b"<call>".hex()}}
NAMED = OutputConstraint.grammar('start: <call> <[299]> "a"')


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a child is asked; it crashes on "crash", and takes too long on "slow"."""
    texts: list[str] = []

    def ask(self: IsolatedProcess, message: Mapping[str, Any]) -> dict[str, Any]:
        texts.append(message["text"])
        if message["text"] in ("crash", "slow"):
            raise ChildEnded(was_slow=message["text"] == "slow")
        return {"error": "no"} if message["text"] == "wrong" else {"grammar": message["text"]}

    monkeypatch.setattr(IsolatedProcess, "ask", ask)
    compiling._outcome.cache_clear()
    yield texts
    compiling._outcome.cache_clear()


def test_a_structure_is_tried_once(asked: list[str]) -> None:
    for text, error in [("a", None), ("wrong", "no"), ("crash", "it crashes the library"), ("slow", "more than 10 s")]:
        for _ in range(2):
            if error is None:
                assert tried(OutputConstraint.regex(text), DESCRIBED) == text
                continue
            with pytest.raises(RequestError, match=error) as refused:
                tried(OutputConstraint.regex(text), DESCRIBED)
            assert refused.value.code == "invalid_structure"
    assert asked == ["a", "wrong", "crash", "slow"]
    tried(OutputConstraint.regex("a"), {"size": 5, "special": {}})
    assert asked[-1] == "a", "another vocabulary has other special tokens"


def test_what_was_tried_last_is_remembered(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_outcome", lru_cache(maxsize=2)(compiling._outcome.__wrapped__))
    for text in ("a", "b", "a", "c", "a", "b"):
        tried(OutputConstraint.regex(text), DESCRIBED)
    assert asked == ["a", "b", "c", "b"]


def test_a_crash_of_the_library_is_the_requests_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance 1.9.1 recurses without end on this schema. whet writes such integers itself."""
    import llguidance

    crashing = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63) + 1}
    text = 'start: %json {"type": "integer", "minimum": -9223372036854775808, "maximum": -9223372036854775807}'
    assert Grammars(TOKENIZER, VOCAB).guide(OutputConstraint.json_schema(crashing)) is not None
    assert Grammars(TOKENIZER, VOCAB).guide(OutputConstraint.grammar(text)) is not None
    assert llguidance.__version__


def test_special_tokens_of_the_vocabulary_are_known() -> None:
    assert tried(NAMED, DESCRIBED)
    with pytest.raises(RequestError, match="the grammar cannot be enforced"):
        tried(NAMED, {"size": 300, "special": {}})
