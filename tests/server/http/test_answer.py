"""JSON that is written in turns is the JSON that is written at once."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.server.http.answer import json_in_turns

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text() | st.just("choices"), inner, max_size=5),
    max_leaves=60,
)


@given(values)
def test_it_is_the_same_json(value: Any) -> None:
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert asyncio.run(json_in_turns(value)) == expected


@pytest.mark.parametrize("num", [0, 1, 15, 16, 17, 33])
def test_lists_of_any_length_are_whole(num: int) -> None:
    content = {"choices": [{"index": i, "logprobs": {"top_logprobs": [{"a": -0.5}] * num}} for i in range(num)]}
    assert json.loads(asyncio.run(json_in_turns(content))) == content


def test_others_have_their_turn() -> None:
    content = {"choices": [{"top_logprobs": [{str(i): -float(i) for i in range(20)}] * 200} for _ in range(64)]}

    async def both() -> int:
        writing = asyncio.ensure_future(json_in_turns(content))
        num_turns = 0
        while not writing.done():
            num_turns += 1
            await asyncio.sleep(0)
        return num_turns

    assert asyncio.run(both()) > 3
