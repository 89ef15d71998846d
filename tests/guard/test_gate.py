import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from whet.guard.gate import ALPHA, LOOKS, TOLERANCE, Judgement, Outcome, holm, judge, judge_unpaired, overall

SCATTER = 0.022  # of a pair's log ratio: what a matrix product shows on two cores


def _run(random: np.random.Generator, slowdown: float, *, drift: float = 0.0) -> Judgement:
    """A gate as it runs: pairs come in until the verdict is clear."""
    old: list[float] = []
    new: list[float] = []
    for i in range(LOOKS[-1]):
        common = math.exp(drift * i)
        a, b = np.exp(random.normal(0, SCATTER / math.sqrt(2), 2)) * common
        old.append(float(a))
        new.append(float(b) * slowdown)
        if i + 1 in LOOKS:
            judgement = judge(old, new)
            if judgement.is_clear:
                return judgement
    raise AssertionError("the last look is always clear")


def _share(outcome: Outcome, slowdown: float, runs: int, *, drift: float = 0.0) -> float:
    random = np.random.default_rng(7)
    return sum(_run(random, slowdown, drift=drift).outcome is outcome for _ in range(runs)) / runs


def test_same_code_is_seldom_called_slower() -> None:
    assert _share(Outcome.FAIL, 1.0, 400) <= 0.05


def test_same_code_is_seldom_called_slower_while_the_machine_slows_down() -> None:
    assert _share(Outcome.FAIL, 1.0, 200, drift=0.01) <= 0.05


@pytest.mark.parametrize(("slowdown", "least"), [(1.02, 0.60), (1.03, 0.90), (1.05, 0.99)])
def test_slowdowns_are_found(slowdown: float, least: float) -> None:
    assert _share(Outcome.FAIL, slowdown, 200) >= least


def test_a_clear_case_ends_early() -> None:
    random = np.random.default_rng(3)
    pairs = [_run(random, 1.3).num_pairs for _ in range(20)]
    assert max(pairs) == LOOKS[0]


def test_a_speedup_passes() -> None:
    assert _share(Outcome.PASS, 0.9, 50) == 1.0


def test_fewer_pairs_than_the_first_look_decide_nothing() -> None:
    judgement = judge([1.0, 1.0, 1.01], [2.0, 2.1, 2.0])
    assert judgement.outcome is Outcome.INCONCLUSIVE
    assert not judgement.is_clear


def test_times_without_scatter_are_certain() -> None:
    assert judge([1.0] * 5, [1.0] * 5).outcome is Outcome.PASS
    assert judge([1.0] * 5, [1.5] * 5).outcome is Outcome.FAIL


@given(st.lists(st.integers(-200, 200), min_size=5, max_size=5, unique=True))
def test_p_values_are_students(thousandths: list[int]) -> None:
    logs = np.array(thousandths) / 1000
    judgement = judge([1.0] * 5, np.exp(logs).tolist(), looks=(5,))
    slower = scipy.stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue
    worse = scipy.stats.ttest_1samp(logs, math.log1p(TOLERANCE), alternative="less").pvalue
    assert judgement.p_slower == pytest.approx(slower, rel=1e-6, abs=1e-12)
    assert judgement.p_worse_than_tolerance == pytest.approx(worse, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=20), st.integers(0, 10**6))
def test_the_unit_does_not_matter(old: list[float], seed: int) -> None:
    new = [t * f for t, f in zip(old, np.random.default_rng(seed).uniform(0.9, 1.1, len(old)), strict=True)]
    a, b = judge(old, new), judge([t * 1e3 for t in old], [t * 1e3 for t in new])
    assert a.outcome is b.outcome
    assert a.slowdown == pytest.approx(b.slowdown)
    assert a.p_slower == pytest.approx(b.p_slower, abs=1e-6)


def _judgement(p_slower: float, outcome: Outcome = Outcome.INCONCLUSIVE) -> Judgement:
    return Judgement(outcome, 1.1, (1.05, 1.15), p_slower, 1.0, 20, 1.001, is_clear=True)


def test_holm_steps_down() -> None:
    # Holm (1979): the smallest p-value against alpha / 3, the next against alpha / 2, and so on until one is larger.
    p_values = [ALPHA / 2 * 0.99, ALPHA / 3 * 0.99, ALPHA * 1.01]
    assert holm([_judgement(p) for p in p_values]) == [Outcome.FAIL, Outcome.FAIL, Outcome.INCONCLUSIVE]
    assert holm([_judgement(p) for p in [ALPHA / 3 * 1.01, ALPHA / 2 * 0.5 + ALPHA, 1.0]]) == [Outcome.INCONCLUSIVE] * 3


def test_holm_takes_back_a_fail_that_many_benchmarks_do_not_bear() -> None:
    judgements = [_judgement(ALPHA * 0.9, Outcome.FAIL), _judgement(0.5, Outcome.PASS)]
    assert holm(judgements) == [Outcome.INCONCLUSIVE, Outcome.PASS]


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE], Outcome.FAIL),
        ([Outcome.PASS, Outcome.INCONCLUSIVE], Outcome.INCONCLUSIVE),
        ([Outcome.PASS], Outcome.PASS),
    ],
)
def test_the_worst_outcome_counts(outcomes: Sequence[Outcome], worst: Outcome) -> None:
    assert overall(outcomes) is worst


def test_unpaired_against_welch() -> None:
    random = np.random.default_rng(1)
    old = list(np.exp(random.normal(0, 0.01, 6)))
    new = list(np.exp(random.normal(math.log(1.1), 0.01, 6)))
    judgement = judge_unpaired(old, new)
    assert judgement.outcome is Outcome.FAIL
    assert judgement.ci95[0] < judgement.slowdown < judgement.ci95[1]
    assert judge_unpaired(old, old).outcome is Outcome.PASS
    with pytest.raises(ValueError, match="two processes"):
        judge_unpaired([1.0], [1.0, 1.1])
