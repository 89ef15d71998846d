"""Sampling, against a sorted row in float64, known distributions, and the engine's own draw in torch."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.sample import UNUSABLE, sample
from whet.kernels.sample.reference import sample_reference
from whet.server.torch_sampler import Truncation, draw

NEAR = 2e-6  # what float32 weights may move a boundary by
INF = float("inf")


class Rule:
    """The same for all rows, or one for each."""

    def __init__(self, **columns: float | list[float]) -> None:
        self.columns = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5, **columns}

    def of(self, num_rows: int) -> list[torch.Tensor]:
        def column(name: str) -> torch.Tensor:
            dtype = torch.int32 if name == "top_k" else torch.float32
            return torch.as_tensor(self.columns[name], dtype=dtype).expand(num_rows).contiguous()

        return [column(name) for name in ("temperature", "top_k", "top_p", "min_p", "uniform")]


def check(logits_RV: torch.Tensor, columns: list[torch.Tensor]) -> int:
    """Assert that ids are the reference's where no boundary is near; how many rows that were."""
    temperature, top_k, top_p, min_p, uniform = columns
    wanted = sample_reference(logits_RV, *columns)
    is_sure = torch.ones(len(logits_RV), dtype=torch.bool)
    for sign_p, sign_m, sign_u in itertools.product((-1, 1), repeat=3):
        near_p = torch.where(top_p < 1, (top_p.double() + sign_p * NEAR).clamp(0, 1), 1.0)
        near_u = (uniform.double() + sign_u * NEAR).clamp(0, 1)
        near = (temperature, top_k, near_p, min_p.double() * (1 + sign_m * NEAR), near_u)
        is_sure &= sample_reference(logits_RV, *near) == wanted
    ids = sample(logits_RV, *columns)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[is_sure], wanted[is_sure]), (ids[is_sure], wanted[is_sure])
    return int(is_sure.sum())


def mixed_rules(num_rows: int) -> list[torch.Tensor]:
    def sometimes(value: torch.Tensor, otherwise: float) -> torch.Tensor:
        return torch.where(torch.rand(num_rows) < 0.5, value, otherwise)

    return [
        sometimes(torch.rand(num_rows) * 2, 1.0) * (torch.rand(num_rows) < 0.9),
        sometimes(torch.randint(1, 60, (num_rows,)), 0).int(),
        sometimes(torch.rand(num_rows), 1.0),
        sometimes(torch.rand(num_rows) * 0.2, 0.0),
        torch.rand(num_rows),
    ]


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_is_the_sorted_row_over_every_small_size(kernels: Library, spread: float) -> None:
    num_sure = sum(check(torch.randn(6, V) * spread, mixed_rules(6)) for V in range(1, 34))
    assert num_sure > 0.97 * 6 * 33


@pytest.mark.parametrize("V", [511, 512, 513, 3000, 32000])
def test_is_the_sorted_row_over_large_vocabularies(kernels: Library, V: int) -> None:
    torch.manual_seed(V)
    logits_RV = torch.randn(12, V) * torch.tensor([0.01, 1.0, 4.0]).repeat(4)[:, None]
    logits_RV[3] = logits_RV[3].round()  # many equal ones
    logits_RV[4, : V // 2] = -INF
    assert check(logits_RV, mixed_rules(12)) >= 10
    assert check(logits_RV, Rule(top_k=min(V, 2000), top_p=0.99, uniform=torch.rand(12).tolist()).of(12)) >= 9


def test_is_the_sorted_row_wherever_its_weight_lies(kernels: Library) -> None:
    V, few = 6_000, torch.arange(7) * 850
    falling_V = -torch.arange(V) / 600.0
    far_V = torch.full((V,), -8.0) + 0.1 * torch.randn(V)  # together more than the one that is far above
    far_V[few[3]] = 0.0
    spread_V = torch.randn(V) * 300
    spread_V[few] = torch.tensor([-1e30, 400.0, -INF, 1e-30, -1e-30, 2.0**-149, 1e5])
    near_V = 60 + 1e-5 * torch.randn(V)
    masked_V = torch.full((V,), torch.finfo(torch.float32).min)
    masked_V[few] = torch.tensor([0.0, 1.0, 1.0, -3.0, 1.0, 0.5, 2.0])
    logits_RV = torch.stack([falling_V, far_V, spread_V, near_V, masked_V]).repeat(3, 1)
    uniform = torch.rand(15)
    for rule in ({}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 3}, {"top_k": 3000, "top_p": 0.7}, {"min_p": 1e-4}):
        for temperature in (0.25, 1.0, 40.0):
            columns = Rule(temperature=temperature, uniform=uniform.tolist(), **rule).of(15)
            assert check(logits_RV, columns) >= 10, (rule, temperature)


def test_is_the_sorted_row_over_a_vocabulary_of_qwens_size(kernels: Library) -> None:
    logits_RV = torch.randn(2, 151936) * 2
    rules = [Rule(uniform=0.3), Rule(top_p=0.9, uniform=0.8), Rule(top_k=50, uniform=0.8), Rule(temperature=0)]
    assert sum(check(logits_RV, rule.of(2)) for rule in rules) >= 6


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    logits=st.lists(st.sampled_from([-INF, -1e30, -2.0, 0.0, -0.0, 1.0, 1.5, 80.0]), min_size=1, max_size=40),
    temperature=st.sampled_from([0.0, 1e-35, 1e-4, 0.3, 1.0, 7.0, 1e20]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.0, 1e-6, 0.3, 0.5, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.2, 0.61, 1.0]),
    uniform=st.sampled_from([0.0, 0.2, 0.49, 0.77, 1 - 2.0**-24]),
)
def test_is_the_sorted_row_among_equal_and_infinite_logits(
    kernels: Library, logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    columns = Rule(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform).of(1)
    check(torch.tensor([logits]), columns)


def test_equal_logits_go_by_id(backend: str) -> None:
    def of(logits: list[float], **columns: float) -> int:
        return int(sample(torch.tensor([logits]), *Rule(**columns).of(1)))

    assert of([1.0, 3.0, 3.0, 2.0], temperature=0) == 1
    assert of([0.0, -0.0], temperature=0) == of([-0.0, 0.0], temperature=0) == 0
    four = [1.0] * 4
    assert [of(four, uniform=u) for u in (0.0, 0.2499, 0.25, 0.5, 0.75, 0.9999)] == [0, 0, 1, 2, 3, 3]
    assert [of(four, top_k=2, uniform=u) for u in (0.0, 0.49, 0.5, 0.99)] == [0, 0, 1, 1]
    assert [of(four, top_p=0.5, uniform=u) for u in (0.0, 0.49, 0.5, 0.99)] == [0, 0, 1, 1]
    assert [of(four, top_p=0.51, uniform=u) for u in (0.34, 0.67)] == [1, 2]
    assert [of([0.0, 5.0, 5.0, 1.0], min_p=1.0, uniform=u) for u in (0.0, 0.49, 0.5, 0.99)] == [1, 1, 2, 2]
    assert [of([0.0, 9.0, 5.0], top_p=0.0, uniform=u) for u in (0.0, 0.99)] == [1, 1]


def test_a_row_without_a_distribution_has_no_token(backend: str) -> None:
    bad = [[0.0, float("nan"), 1.0], [0.0, -float("nan"), 1.0], [0.0, INF, 1.0], [-INF] * 3, [float("nan")] * 3]
    good = [[0.0, 2.0, -INF], [torch.finfo(torch.float32).min] * 3]
    for temperature, wanted in ((0.0, [1, 0]), (1.0, [1, 1])):
        ids = sample(torch.tensor(bad + good), *Rule(temperature=temperature).of(7)).tolist()
        assert ids == [UNUSABLE] * 5 + wanted
    wide = torch.zeros(2, 5000)
    wide[0, 4999] = float("nan")
    wide[1, 4999] = 1e-3
    assert sample(wide, *Rule(temperature=0.0).of(2)).tolist() == [UNUSABLE, 4999]


def test_what_is_masked_is_never_drawn(kernels: Library) -> None:
    logits_RV = torch.randn(500, 300)
    logits_RV[:, ::2] = -INF
    for temperature in (0.5, 1.0, 1e10):
        columns = Rule(temperature=temperature).of(500)
        columns[4] = torch.rand(500)
        assert bool((sample(logits_RV, *columns) % 2 == 1).all())


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 2.0},
        {"top_k": 9},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("V", [40, 700])
def test_tokens_come_as_often_as_their_probabilities_say(kernels: Library, rule: dict[str, float], V: int) -> None:
    num_draws = 20_000
    logits_V = torch.randn(V, dtype=torch.float64).float() * 2
    columns = Rule(**rule).of(num_draws)
    columns[4] = torch.rand(num_draws)
    counts_V = sample(logits_V.expand(num_draws, V).contiguous(), *columns).bincount(minlength=V)
    probs_V = torch.softmax(logits_V.double() / rule.get("temperature", 1.0), 0)
    probs_V[probs_V < rule.get("min_p", 0.0) * probs_V.max()] = 0
    if rule.get("top_k"):
        probs_V[probs_V < probs_V.sort(descending=True).values[int(rule["top_k"]) - 1]] = 0
    if rule.get("top_p"):
        sorted_V, order_V = (probs_V / probs_V.sum()).sort(descending=True)
        probs_V[order_V[sorted_V.cumsum(0) - sorted_V >= rule["top_p"]]] = 0
    expected_V = probs_V / probs_V.sum() * num_draws
    assert counts_V[probs_V == 0].sum() == 0
    often = expected_V > 5
    observed = [*counts_V[often].tolist(), int(counts_V[~often].sum())]
    expected = [*expected_V[often].tolist(), float(expected_V[~often].sum())]
    if expected[-1] < 1:
        observed, expected = observed[:-1], [value * num_draws / sum(expected[:-1]) for value in expected[:-1]]
        expected = [value * sum(observed) / num_draws for value in expected]
    assert chisquare(observed, expected).pvalue > 1e-4


def test_is_the_engines_own_draw(kernels: Library) -> None:
    logits_RV = torch.randn(40, 1000) * 3
    temperature, top_k, top_p, min_p, uniform = mixed_rules(40)
    rule = Truncation(temperature, top_k.long(), top_p, min_p)
    assert torch.equal(sample(logits_RV, temperature, top_k, top_p, min_p, uniform), draw(logits_RV, rule, uniform))


def test_a_row_does_not_depend_on_its_company_or_on_threads(kernels: Library) -> None:
    logits_RV, columns = torch.randn(40, 4000), mixed_rules(40)  # large enough for the pool
    alone = torch.cat([sample(logits_RV[i : i + 1], *(column[i : i + 1] for column in columns)) for i in range(40)])
    try:
        for num_threads in (1, 3):
            kernels.set_threads(num_threads)
            assert torch.equal(sample(logits_RV, *columns), alone)
    finally:
        kernels.set_threads(torch.get_num_threads())


def test_is_an_operator_of_torch(kernels: Library) -> None:
    torch.library.opcheck(torch.ops.whet.sample.default, (torch.randn(5, 40), *mixed_rules(5)))


def test_takes_other_floating_types_and_no_rows(backend: str) -> None:
    logits_RV = torch.randn(4, 50).bfloat16()
    columns = Rule(uniform=[0.1, 0.4, 0.7, 0.9]).of(4)
    assert torch.equal(sample(logits_RV, *columns), sample(logits_RV.float(), *columns))
    assert sample(torch.empty(0, 50), *Rule().of(0)).shape == (0,)


def test_what_does_not_fit_is_refused(backend: str) -> None:
    logits_RV, columns = torch.randn(3, 40), Rule().of(3)
    with pytest.raises(InputsError, match=r"logits are \[rows, vocabulary\], not \[40\]"):
        sample(logits_RV[0], *columns)
    with pytest.raises(InputsError, match=r"not torch.float32 \[3, 0\]"):
        sample(torch.empty(3, 0), *columns)
    with pytest.raises(InputsError, match=r"top_k of 3 rows is torch.int32 \[3\], contiguous, not torch.int64 \[3\]"):
        sample(logits_RV, columns[0], columns[1].long(), *columns[2:])
    with pytest.raises(InputsError, match="uniform of 3 rows"):
        sample(logits_RV, *columns[:4], torch.rand(2))
