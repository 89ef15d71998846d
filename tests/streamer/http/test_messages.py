"""The text messages of the page: each is read, and nothing else passes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RequestError
from whet.streamer.http.messages import GuidanceChange, PromptChange, Shown, Start, parse_text


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"type": "start", "source": "camera"}, Start(type="start", source="camera")),
        ({"type": "start", "source": "server", "key": "k"}, Start(type="start", source="server", key="k")),
        ({"type": "prompt", "prompt": "a cat"}, PromptChange(type="prompt", prompt="a cat")),
        (
            {"type": "guidance", "kind": "self", "weight": 2, "delta": 0.5},
            GuidanceChange(type="guidance", kind="self", weight=2.0, delta=0.5),
        ),
        ({"type": "shown"}, Shown(type="shown")),
    ],
)
def test_messages(message, found):
    assert parse_text(json.dumps(message)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"shown"',
        "{}",
        '{"type": "shown", "more": 1}',
        '{"type": "start", "source": "file"}',
        '{"type": "start", "source": "camera", "key": 3}',
        '{"type": "prompt", "prompt": null}',
        '{"type": "guidance", "kind": "self", "weight": NaN}',
        '{"type": "guidance", "kind": "self", "weight": "2"}',
        json.dumps({"type": "prompt", "prompt": "x" * 4001}),
        "[" * 100_000,
        '{"type": "shown"}\ud800',
    ],
)
def test_what_is_no_message(text):
    with pytest.raises(RequestError, match="the server does not understand the page's"):
        parse_text(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "key", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["start", "prompt", "guidance", "shown", "x"])},
    optional=dict.fromkeys(("source", "key", "prompt", "negative", "kind", "weight", "delta"), JSON),
)


@given(st.text() | FIELDS.map(json.dumps))
def test_any_text_is_read_or_refused(text):
    try:
        message = parse_text(text)
    except RequestError:
        return
    assert message.type == json.loads(text)["type"]
