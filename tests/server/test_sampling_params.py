"""What a request may ask for, and what is said where it may not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RequestError
from whet.server.sampling_params import SamplingParams

ANY_VALUE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: it is a number from 0 to 100"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": True}, "temperature=True"),
        ({"top_k": -2}, "top_k=-2: it is a whole number of at least -1"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_p": 0.0}, r"top_p=0.0: it is a number from 0 \(not itself\) to 1"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty=2.1: it is a number from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0: it is a number from 0.01 to 100"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty"),
        ({"repetition_penalty": 1e39}, "repetition_penalty"),
        ({"temperature": 1e39}, "temperature"),
        ({"logit_bias": {1: 1e39}}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": -1}, "max_tokens=-1"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens=4 is above max_tokens=3"),
        ({"stop": ("",)}, "stop"),
        ({"stop": "end"}, "stop='end': it is a tuple or a list"),
        ({"stop": None}, "stop=None"),
        ({"stop_token_ids": 3}, "stop_token_ids=3"),
        ({"logit_bias": [1]}, "logit_bias=.1.: it maps tokens to numbers"),
        ({"stop": ("x",) * 65}, "up to 64"),
        ({"stop_token_ids": (100,)}, "stop_token_ids: a token=100: it is a whole number from 0 to 99"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 101}, "prompt_logprobs=101: it is a whole number from 0 to 100"),
        ({"logit_bias": {100: 1.0}}, "logit_bias: a token=100"),
        ({"logit_bias": {1: math.inf}}, "logit_bias of 1=inf: it is a number"),
    ],
)
def test_values_out_of_range(values: dict[str, object], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        SamplingParams(**values).check(vocab_size=100)
    assert caught.value.param in values


def test_the_ends_of_the_ranges_are_in() -> None:
    SamplingParams().check(100)
    SamplingParams(
        temperature=0, top_k=-1, top_p=1, min_p=1, presence_penalty=-2, frequency_penalty=2, seed=-1, max_tokens=None
    ).check(100)
    SamplingParams(max_tokens=0, logprobs=0, stop_token_ids=(0, 99), logit_bias={99: -100}, stop=("a", "\n")).check(100)


@given(st.dictionaries(st.sampled_from([*SamplingParams.__dataclass_fields__]), ANY_VALUE))
def test_nothing_but_a_request_error(values: dict[str, object]) -> None:
    """Whatever comes from outside: fine, or one clear error."""
    try:
        SamplingParams(**values).check(vocab_size=100)
    except RequestError as error:
        assert str(error)


def test_what_takes_the_fast_path() -> None:
    assert SamplingParams(temperature=0, top_p=0.5, logprobs=1, stop=("x",)).is_plain
    for values in ({"temperature": 0.1}, {"min_tokens": 1}, {"logit_bias": {1: 1.0}}, {"repetition_penalty": 1.1}):
        assert not SamplingParams(**{"temperature": 0, **values}).is_plain
