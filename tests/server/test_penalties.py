"""Penalties and biases against the same rule written token by token, and what is left behind: nothing."""

import torch
from driving import make_request
from hypothesis import given
from hypothesis import strategies as st
from naive import processed

from whet.server.penalties import Penalties
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams

V = 25
TOKENS = st.lists(st.integers(0, V - 1), max_size=12)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(1.0),
    max_tokens=st.just(99),
    min_tokens=st.sampled_from([0, 5]),
    stop_token_ids=st.sampled_from([(), (3, 4)]),
    logit_bias=st.sampled_from([{}, {3: 2.5, 9: -100.0}]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.3]),
)


def expected(logits: torch.Tensor, request: Request, num_drafts: int) -> torch.Tensor:
    output = request.token_ids[request.num_prompt :] + request.drafts[:num_drafts]
    return processed(logits, request.prompt_ids, output, request.params, set(request.stop_ids)).float()


@given(st.lists(st.tuples(PARAMS, TOKENS, TOKENS, TOKENS), min_size=1, max_size=4), st.integers(0, 99))
def test_is_the_rule_as_tokens_come(
    kinds: list[tuple[SamplingParams, list[int], list[int], list[int]]], seed: int
) -> None:
    penalties = Penalties()
    requests = [make_request([1, *prompt], params) for params, prompt, _, _ in kinds]
    longest = max(len(tokens) for _, _, tokens, _ in kinds)
    for step in range(longest + 1):
        rows = [(request, i % (len(request.drafts) + 1)) for i, request in enumerate(requests)]
        logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed + step)) * 3
        before = logits.clone()
        with penalties.applied(logits, rows):
            for changed, original, row in zip(logits, before, rows, strict=True):
                torch.testing.assert_close(changed, expected(original, *row), rtol=1e-5, atol=1e-5)
        assert torch.equal(logits, before)
        for request, (_, _, tokens, drafts) in zip(requests, kinds, strict=True):
            request.token_ids += tokens[step : step + 1]
            request.drafts = drafts[:step]


def test_a_new_request_of_the_same_name_has_seen_nothing() -> None:
    params = SamplingParams(temperature=1, presence_penalty=1.0, max_tokens=9)
    penalties = Penalties()
    for token_id in (2, 5):
        request = make_request([1], params, id="one")
        request.take([token_id])
        logits = torch.zeros(1, V)
        with penalties.applied(logits, [(request, 0)]):
            assert torch.nonzero(logits[0]).tolist() == [[token_id]]


def test_numbers_that_are_none_are_not_hidden() -> None:
    request = make_request([1], SamplingParams(min_tokens=3, stop_token_ids=(4, 5, 6), max_tokens=9))
    logits = torch.zeros(1, V)
    logits[0, 4], logits[0, 5] = torch.nan, torch.inf
    with Penalties().applied(logits, [(request, 0)]):
        assert logits[0, 4].isnan()
        assert logits[0, 5:8].tolist() == [torch.inf, -torch.inf, 0]
