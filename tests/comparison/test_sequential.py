import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from whet.comparison.claim import Claim, Verdict
from whet.comparison.sequential import ALPHA, LOOKS, TOLERANCE, holm, judge, judge_unpaired, overall, p_values

SCATTER = 0.022  # of a pair's log ratio: what a matrix product shows on two cores


def _run(random: np.random.Generator, slowdown: float, *, drift: float = 0.0) -> Claim:
    """A gate as it runs: pairs come in until the verdict is clear."""
    old: list[float] = []
    new: list[float] = []
    for i in range(LOOKS[-1]):
        common = math.exp(drift * i)
        a, b = np.exp(random.normal(0, SCATTER / math.sqrt(2), 2)) * common
        old.append(float(a))
        new.append(float(b) * slowdown)
        if i + 1 in LOOKS:
            claim = judge(old, new)
            if claim.is_clear:
                return claim
    raise AssertionError("the last look is always clear")


def _share(outcome: Verdict, slowdown: float, runs: int, *, drift: float = 0.0) -> float:
    random = np.random.default_rng(7)
    return sum(_run(random, slowdown, drift=drift).verdict is outcome for _ in range(runs)) / runs


def test_same_code_is_seldom_called_slower() -> None:
    assert _share(Verdict.FAIL, 1.0, 400) <= 0.05


def test_same_code_is_seldom_called_slower_while_the_machine_slows_down() -> None:
    assert _share(Verdict.FAIL, 1.0, 200, drift=0.01) <= 0.05


@pytest.mark.parametrize(("slowdown", "least"), [(1.02, 0.60), (1.03, 0.90), (1.05, 0.99)])
def test_slowdowns_are_found(slowdown: float, least: float) -> None:
    assert _share(Verdict.FAIL, slowdown, 200) >= least


def test_a_clear_case_ends_early() -> None:
    random = np.random.default_rng(3)
    pairs = [_run(random, 1.3).num_pairs for _ in range(20)]
    assert max(pairs) == LOOKS[0]


def test_a_speedup_passes() -> None:
    assert _share(Verdict.PASS, 0.9, 50) == 1.0


def test_fewer_pairs_than_the_first_look_decide_nothing() -> None:
    claim = judge([1.0, 1.0, 1.01], [2.0, 2.1, 2.0])
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert not claim.is_clear


def test_times_without_scatter_are_certain() -> None:
    assert judge([1.0] * 5, [1.0] * 5).verdict is Verdict.PASS
    assert judge([1.0] * 5, [1.5] * 5).verdict is Verdict.FAIL


@given(st.lists(st.integers(-200, 200), min_size=5, max_size=5, unique=True))
def test_p_values_are_students(thousandths: list[int]) -> None:
    logs = np.array(thousandths) / 1000
    claim = judge([1.0] * 5, np.exp(logs).tolist(), looks=(5,))
    _, p_worse = p_values(logs, tolerance=TOLERANCE, looks=(5,))
    slower = scipy.stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue
    worse = scipy.stats.ttest_1samp(logs, math.log1p(TOLERANCE), alternative="less").pvalue
    assert claim.p_value == pytest.approx(slower, rel=1e-6, abs=1e-12)
    assert p_worse == pytest.approx(worse, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=20), st.integers(0, 10**6))
def test_the_unit_does_not_matter(old: list[float], seed: int) -> None:
    new = [t * f for t, f in zip(old, np.random.default_rng(seed).uniform(0.9, 1.1, len(old)), strict=True)]
    a, b = judge(old, new), judge([t * 1e3 for t in old], [t * 1e3 for t in new])
    assert a.verdict is b.verdict
    assert a.slowdown == pytest.approx(b.slowdown)
    assert a.p_value == pytest.approx(b.p_value, abs=1e-6)


def _judged(p_value: float, verdict: Verdict = Verdict.INCONCLUSIVE) -> Claim:
    return Claim(verdict=verdict, ratio=1 / 1.1, ci95=(1 / 1.15, 1 / 1.05), p_value=p_value, num_pairs=20, noise=1.001)


def _verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    return [claim.verdict for claim in holm(claims)]


def test_holm_steps_down() -> None:
    # Holm (1979): the smallest p-value against alpha / 3, the next against alpha / 2, and so on until one is larger.
    p_values = [ALPHA / 2 * 0.99, ALPHA / 3 * 0.99, ALPHA * 1.01]
    assert _verdicts([_judged(p) for p in p_values]) == [Verdict.FAIL, Verdict.FAIL, Verdict.INCONCLUSIVE]
    p_values = [ALPHA / 3 * 1.01, ALPHA / 2 * 0.5 + ALPHA, 1.0]
    assert _verdicts([_judged(p) for p in p_values]) == [Verdict.INCONCLUSIVE] * 3


def test_holm_takes_back_a_fail_that_many_benchmarks_do_not_bear() -> None:
    claims = [_judged(ALPHA * 0.9, Verdict.FAIL), _judged(0.5, Verdict.PASS)]
    assert _verdicts(claims) == [Verdict.INCONCLUSIVE, Verdict.PASS]


def test_holm_leaves_out_what_could_not_be_measured() -> None:
    """A benchmark without pairs is no test, so it costs the others nothing."""
    broken = Claim(verdict=Verdict.INCONCLUSIVE, failure="cannot be built", failed="old")
    assert _verdicts([_judged(ALPHA * 0.9, Verdict.FAIL), broken]) == [Verdict.FAIL, Verdict.INCONCLUSIVE]


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE], Verdict.FAIL),
        ([Verdict.PASS, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        ([Verdict.PASS], Verdict.PASS),
    ],
)
def test_the_worst_outcome_counts(outcomes: Sequence[Verdict], worst: Verdict) -> None:
    assert overall(outcomes) is worst


def test_unpaired_against_welch() -> None:
    random = np.random.default_rng(1)
    old = list(np.exp(random.normal(0, 0.01, 6)))
    new = list(np.exp(random.normal(math.log(1.1), 0.01, 6)))
    claim = judge_unpaired(old, new)
    assert claim.verdict is Verdict.FAIL
    assert claim.ci95 is not None
    assert claim.ratio is not None
    assert claim.ci95[0] < claim.ratio < claim.ci95[1] < 1
    welch = scipy.stats.ttest_ind(np.log(new), np.log(old), equal_var=False, alternative="greater")
    assert claim.p_value == pytest.approx(welch.pvalue)
    assert judge_unpaired(old, old).verdict is Verdict.PASS
    with pytest.raises(ValueError, match="two processes"):
        judge_unpaired([1.0], [1.0, 1.1])
