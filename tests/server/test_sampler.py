"""Penalties, biases and the fast path, in a batch of all kinds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from driving import make_request
from naive import drawn, kept, processed
from scipy import stats

from whet.server.randomness import uniform
from whet.server.request import Request
from whet.server.sampler import UNUSABLE, Row, Sampler, sample
from whet.server.sampling_params import SamplingParams

KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 0.0, "logit_bias": {3: 9.0}},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.8, "seed": 4, "frequency_penalty": 1.0, "presence_penalty": -0.5, "repetition_penalty": 0.8},
    {"temperature": 1.5, "seed": 5, "top_k": 4, "min_tokens": 6, "stop_token_ids": (1, 2), "logit_bias": {1: 99.0}},
]


def requests() -> list[Request]:
    made = []
    for kind in KINDS:
        request = make_request([5, 6, 7, 5], SamplingParams(max_tokens=9, **kind))
        request.take([8, 5, 8, 9])
        made.append(request)
    return made


def test_all_kinds_in_one_batch() -> None:
    logits = torch.randn(len(KINDS), 30)
    before = logits.clone()
    found = sample(logits, [Row(request) for request in requests()])
    for i, request in enumerate(requests()):
        params, ends = request.params, set(request.params.stop_token_ids)
        expected = processed(logits[i], request.prompt_ids, [8, 5, 8, 9], params, ends)
        if params.temperature == 0:
            assert found[i] == int(expected.argmax())
        else:
            assert found[i] == drawn(expected, params, uniform(request.seed, 4))
    assert found[5] not in (1, 2)
    torch.testing.assert_close(logits, before, rtol=0, atol=0)  # the model's own are left alone


def test_drafts_before_a_row_count_as_output() -> None:
    request = requests()[4]
    request.drafts = [11, 8]
    logits = torch.randn(1, 30)
    expected = processed(logits[0], request.prompt_ids, [8, 5, 8, 9, 11, 8], request.params, set())
    assert sample(logits, [Row(request, 2)])[0] == drawn(expected, request.params, uniform(request.seed, 6))


def test_equals_transformers_repetition_penalty() -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    request = make_request([5, 6], SamplingParams(temperature=1, repetition_penalty=1.7, max_tokens=9))
    request.take([7, 7, 2])
    logits = torch.randn(1, 30)
    theirs = process.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[5, 6, 7, 7, 2]]), logits.clone())
    count = 4000
    made = [make_request([5, 6], replace(request.params, seed=seed)) for seed in range(count)]
    for one in made:
        one.take([7, 7, 2])
    times = np.bincount(sample(logits.repeat(count, 1), [Row(one) for one in made]), minlength=30)
    order, probs = kept(theirs[0], SamplingParams())
    likely = probs * count >= 5
    assert (
        stats.chisquare(times[order[likely]], probs[likely] / probs[likely].sum() * times[order[likely]].sum()).pvalue
        > 1e-3
    )


@pytest.mark.parametrize(
    "values",
    [{"temperature": t} for t in (5e-324, 1e-45, 1e-39, 1e-30, 1e-6, 1e-5, 1e-3, 100.0)]
    + [{"temperature": 1.0, "repetition_penalty": p} for p in (0.01, 100.0)]
    + [{"temperature": 1.0, "logit_bias": {3: b}} for b in (-1e30, 1e30)]
    + [{"temperature": 1.0, name: 5e-324} for name in ("top_p", "min_p", "presence_penalty")],
)
def test_the_ends_of_the_ranges_give_tokens(values: dict[str, Any]) -> None:
    params = SamplingParams(seed=1, **values)
    params.check(30)
    logits = torch.randn(1, 30) * 100
    logits[0, 7] = -torch.inf
    found = sample(logits, [Row(make_request([5, 6], params))])[0]
    assert 0 <= found < 30
    if params.temperature <= 1e-5:
        assert found == int(logits.argmax())


def test_of_equal_logits_the_first() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, -1.0], [1.0, 1.0, 1.0, 1.0]])
    rows = [Row(make_request([1], SamplingParams(temperature=0))) for _ in range(2)]
    assert sample(logits, rows).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_cannot_be_used(temperature: float) -> None:
    logits = torch.zeros(4, 6)
    logits[0, 3], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf
    rows = [Row(make_request([1], SamplingParams(temperature=temperature, seed=1))) for _ in range(4)]
    found = sample(logits, rows)
    assert found[:3].tolist() == [UNUSABLE] * 3
    assert found[3] != UNUSABLE


def test_the_same_whoever_shares_the_batch() -> None:
    logits = torch.randn(len(KINDS), 30)
    together = sample(logits, [Row(request) for request in requests()])
    alone = [sample(logits[i : i + 1], [Row(request)])[0] for i, request in enumerate(requests())]
    np.testing.assert_array_equal(together, alone)


def test_the_same_step_after_step_with_the_same_rows_or_others() -> None:
    sampler, made = Sampler(), requests()
    rows = [Row(request) for request in made]
    for step in range(9):
        if step in (3, 6):  # one goes, and what comes in its place has the same name
            made[step % 5] = make_request([9, 2], SamplingParams(presence_penalty=1.0, seed=8), id=made[step % 5].id)
            rows = [Row(request) for request in made]
        logits = torch.randn(len(KINDS), 30)
        found = sampler.sample(logits, rows)
        np.testing.assert_array_equal(found, sample(logits, [Row(request) for request in made]))
        for request, token_id in zip(made, found.tolist(), strict=True):
            request.take([token_id])
