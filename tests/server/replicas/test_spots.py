"""Which requests belong together is read from the bytes of their bodies; json is what they are judged by."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.server.replicas.routing import Spot, spot_of

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MANY = "tell me more about whetstones, and how they are made. " * 30


def spot(path: str, key: str = "", **body: Any) -> Spot:
    return spot_of(path, key, json.dumps(body).encode())


def shared(first: Spot, second: Spot) -> int:
    """How many blocks two requests begin with in common."""
    pairs = zip(first.blocks, second.blocks, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first.blocks), len(second.blocks)))


@given(st.text(), st.dictionaries(st.sampled_from(["seed", "user", "stop"]), st.text(), max_size=3))
def test_what_follows_a_prompt_changes_nothing(text: str, more: dict[str, str]) -> None:
    assert spot(TEXT, prompt=text, **more) == spot(TEXT, model="m", prompt=text)
    assert spot(TEXT, prompt=[text, "other"], **more) == spot(TEXT, prompt=text)


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(0, 10**6))
def test_token_ids_are_read_with_and_without_blanks(ids: list[int], other: int) -> None:
    wide, narrow = json.dumps({"prompt": ids}), json.dumps({"prompt": ids}, separators=(",", ":"))
    assert spot_of(TEXT, "", wide.encode()) == spot_of(TEXT, "", narrow.encode()) == spot(TEXT, prompt=[ids, [1]])
    assert (spot(TEXT, prompt=[*ids, other]) == spot(TEXT, prompt=ids)) is False


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), min_size=1, max_size=6), st.text())
def test_a_conversation_begins_with_its_earlier_turns(turns: list[tuple[str, str]], more: str) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    longer = [*messages, {"role": "user", "content": more}]
    first, second = spot(CHAT, messages=messages, tools=[]), spot(CHAT, messages=longer)
    size = len(json.dumps(messages)[1:-1])
    assert shared(first, second) >= size // 256
    assert spot(CHAT, messages=messages, temperature=0.5, stop=["]"]) == first


def test_common_text_is_seen_in_whole_blocks() -> None:
    first, second = spot(TEXT, prompt=MANY + "one"), spot(TEXT, prompt=MANY + "two")
    assert shared(first, second) == len(MANY) // 256
    assert shared(spot(TEXT, prompt=MANY), spot(TEXT, prompt="x" + MANY)) == 0


def test_keys_are_kept_apart_as_their_caches_are() -> None:
    assert shared(spot(TEXT, "one", prompt=MANY), spot(TEXT, "other", prompt=MANY)) == 0


def test_a_large_body_has_no_more_blocks_than_a_long_one() -> None:
    assert len(spot(TEXT, prompt="x" * 10**6).blocks) == 256


def test_one_name_of_a_state_has_one_place_which_is_not_learned() -> None:
    first = spot("/v1/states/notes", "key", prompt=MANY)
    assert first == spot("/v1/states/notes", "key", prompt="another") != spot("/v1/states/notes", prompt=MANY)
    assert not first.is_remembered


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"prompt":', b'{"prompt": [', b'{"prompt": [[', b'{"prompt": null}', b'{"prompt": "', b"\xff" * 99],
)
def test_what_is_no_request_has_some_place(body: bytes) -> None:
    for path in (TEXT, CHAT):
        assert len(spot_of(path, "", body).blocks) <= 1
        assert len(spot_of(path, "", body.replace(b"prompt", b"messages")).blocks) <= 1
