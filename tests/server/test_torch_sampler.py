"""Truncation and drawing against the same rule written plainly, and against transformers' own."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import drawn, kept
from scipy import stats

from whet.kernels.sample import UNUSABLE
from whet.kernels.sample import sample as sample_by_kernel
from whet.server.sampling_params import SamplingParams
from whet.server.torch_sampler import Truncation, sample_in_torch

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 300, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)


def rule(*params: SamplingParams) -> Truncation:
    return Truncation(
        torch.tensor([p.temperature for p in params]),
        torch.tensor([p.top_k for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params]),
        torch.tensor([p.min_p for p in params]),
    )


@given(st.lists(PARAMS, min_size=1, max_size=5), st.integers(0, 1000), st.sampled_from([5, 40, 700]), st.booleans())
def test_the_rule(params: list[SamplingParams], seed: int, vocab_size: int, has_ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(params), vocab_size, generator=generator) * 2
    if has_ties:
        logits = logits.round()
    numbers = torch.rand(len(params), generator=generator)
    found = sample_in_torch(logits, rule(*params), numbers).tolist()
    for i, one in enumerate(params):
        if one.temperature == 0:
            assert found[i] == int(logits[i].argmax())
            continue
        order, expected = kept(logits[i], one)
        if found[i] != drawn(logits[i], one, float(numbers[i])):  # only where the number is a hair from the edge
            edge = np.cumsum(expected)[list(order).index(found[i]) - 1 : list(order).index(found[i]) + 1]
            assert abs(edge - float(numbers[i])).min() < 1e-5


@given(st.lists(PARAMS, min_size=1, max_size=5), st.integers(0, 1000), st.sampled_from([5, 700, 3001]))
def test_the_kernel_and_torch_agree(params: list[SamplingParams], seed: int, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(params), vocab_size, generator=generator) * 8).round() / 4  # many are equal
    numbers = torch.rand(len(params), generator=generator)
    ours, theirs = sample_in_torch(logits, rule(*params), numbers), sample_by_kernel(logits, *rule(*params), numbers)
    for i in torch.nonzero(ours != theirs)[:, 0].tolist():  # only where the number is a hair from the edge
        assert params[i].temperature > 0
        order, probs = kept(logits[i], params[i])
        assert abs(np.cumsum(probs) - float(numbers[i])).min() < 1e-5
        assert int(theirs[i]) in order


def test_rows_that_are_no_numbers() -> None:
    logits = torch.zeros(4, 6)
    logits[0, 3], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf
    for temperature in (0.0, 1.0):
        found = sample_in_torch(logits, rule(*[SamplingParams(temperature=temperature)] * 4), torch.zeros(4))
        assert found.tolist() == [UNUSABLE] * 3 + [0]


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, numbers = torch.randn(6, 500), torch.rand(6)
    params = [SamplingParams(temperature=0.5 + i, top_p=0.8, top_k=10 * i) for i in range(6)]
    together = sample_in_torch(logits, rule(*params), numbers).tolist()
    alone = [int(sample_in_torch(logits[i : i + 1], rule(params[i]), numbers[i : i + 1])) for i in range(6)]
    assert together == alone


@pytest.mark.parametrize("values", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.5}])
def test_chi_square(values: dict[str, float]) -> None:
    logits = torch.randn(1, 30) * 1.5
    params, count = SamplingParams(temperature=0.8, **values), 20_000
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(3))
    found = sample_in_torch(logits.expand(count, -1), rule(*[params] * count), numbers)
    times = np.bincount(found.numpy(), minlength=30)
    order, probs = kept(logits[0], params)
    assert times.sum() == times[order].sum()
    assert len(order) == 1 or stats.chisquare(times[order], probs * count).pvalue > 1e-3


@pytest.mark.parametrize("values", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.6}])
def test_equals_transformers(values: dict[str, float]) -> None:
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(4, 200) * 2
    made = {
        "top_k": warpers.TopKLogitsWarper,
        "top_p": warpers.TopPLogitsWarper,
        "min_p": warpers.MinPLogitsWarper,
    }
    numbers = (torch.arange(5000) + 0.5) / 5000  # evenly spread, so that the counts are the probabilities
    theirs = logits / 0.7
    for name, value in values.items():
        theirs = made[name](value)(None, theirs)
    for one, expected in zip(logits, theirs.softmax(1), strict=True):
        params = SamplingParams(temperature=0.7, **values)
        found = sample_in_torch(one.expand(5000, -1), rule(*[params] * 5000), numbers)
        ours = torch.bincount(found, minlength=200) / 5000
        torch.testing.assert_close(ours, expected, rtol=0, atol=3e-4)
