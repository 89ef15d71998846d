"""Has it become slower? A sequential test on process pairs, for one benchmark or for many.

old[i] and new[i] were measured side by side, each in a process of its own. At fixed numbers of pairs one looks at the
mean log ratio; Student's t with the process as the replicate gives two one-sided p-values, of "slower" and of "slower
by the tolerance or more". Each look may spend a share of the error, and the shares sum to it, so that looking often
costs nothing (Bonferroni over looks: an upper bound whatever the dependence). Many benchmarks share it by Holm.

FAIL            slower: proven, and by more than the same code differs from itself here
PASS            not slower by the tolerance or more: proven
INCONCLUSIVE    neither, after the last pair

Sources: Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979); Lan and DeMets, "Discrete Sequential
Boundaries for Clinical Trials" (1983), on spending the error over looks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from whet.measure.stats import MAX_NOISE, noise_floor, paired_ratio

ALPHA = 0.025  # of calling the same code slower, over all looks and all benchmarks of a run
PASS_ALPHA = 0.05  # of passing what is slower by the tolerance
LOOKS = (5, 8, 11, 15, 20)
TOLERANCE = 0.02


class Outcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Judgement:
    """slowdown: new over old, geometric mean of the pairs; 1.02 is two percent slower. ci95: bootstrap interval of it.

    p_slower: of the same code looking at least this slow, over all looks so far. noise: the ratio that as many pairs of
    the same code could show here, from the scatter of the ratios. is_clear: no further pair is needed.
    """

    outcome: Outcome
    slowdown: float
    ci95: tuple[float, float]
    p_slower: float
    p_worse_than_tolerance: float
    num_pairs: int
    noise: float
    is_clear: bool


def judge(
    old: Sequence[float],
    new: Sequence[float],
    *,
    tolerance: float = TOLERANCE,
    num_benchmarks: int = 1,
    looks: Sequence[int] = LOOKS,
) -> Judgement:
    """Judge the pairs so far: times of old[i] and new[i], positive, in any one unit.

    num_benchmarks: that are judged in the same run; a slowdown is clear before the others have ended only where it
    would be so whatever they say (Bonferroni); `holm` is for when all have ended. Raises ValueError for unequal or
    fewer than two pairs.
    """
    if len(old) < 2:
        raise ValueError("two pairs at the least")
    slowdown, ci95 = paired_ratio(list(new), list(old))  # new over old
    logs = np.log(np.asarray(new, dtype=float) / np.asarray(old, dtype=float))
    taken = [n for n in looks if n <= len(logs)]
    p_slower = _spent([_p_above(logs[:n], 0.0) for n in taken], len(looks))
    p_worse = _spent([_p_below(logs[:n], math.log1p(tolerance)) for n in taken], len(looks))
    noise = math.exp(
        float(scipy.special.stdtrit(len(logs) - 1, 0.975)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    )
    is_slower = p_slower <= ALPHA / num_benchmarks and slowdown > noise
    is_fine = p_worse <= PASS_ALPHA and not is_slower and noise <= MAX_NOISE
    outcome = Outcome.FAIL if is_slower else Outcome.PASS if is_fine else Outcome.INCONCLUSIVE
    return Judgement(
        outcome=outcome,
        slowdown=slowdown,
        ci95=ci95,
        p_slower=p_slower,
        p_worse_than_tolerance=p_worse,
        num_pairs=len(logs),
        noise=noise,
        is_clear=outcome is not Outcome.INCONCLUSIVE or len(logs) >= looks[-1],
    )


def holm(judgements: Sequence[Judgement]) -> list[Outcome]:
    """The outcomes of benchmarks judged together, once all have ended: ALPHA is the chance of a single false FAIL."""
    outcomes: list[Outcome] = [Outcome.INCONCLUSIVE if j.outcome is Outcome.FAIL else j.outcome for j in judgements]
    order = sorted(range(len(judgements)), key=lambda i: judgements[i].p_slower)
    for rank, i in enumerate(order):
        if judgements[i].p_slower > ALPHA / (len(judgements) - rank):
            break
        if judgements[i].slowdown > judgements[i].noise:
            outcomes[i] = Outcome.FAIL
    return outcomes


def overall(outcomes: Sequence[Outcome]) -> Outcome:
    """FAIL where one fails, else INCONCLUSIVE where one is, else PASS."""
    for outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return Outcome.PASS


def judge_unpaired(old: Sequence[float], new: Sequence[float], *, tolerance: float = TOLERANCE) -> Judgement:
    """Judge times that were not taken side by side, as against a saved baseline: Welch's t on the logarithms.

    What the machine did differently at the two times cannot be told from what the code does. Raises ValueError for
    fewer than two processes on a side.
    """
    if min(len(old), len(new)) < 2:
        raise ValueError("two processes on each side at the least")
    a, b = np.log(np.asarray(old, dtype=float)), np.log(np.asarray(new, dtype=float))
    slower = scipy.stats.ttest_ind(b, a, equal_var=False, alternative="greater")
    worse = scipy.stats.ttest_ind(b - math.log1p(tolerance), a, equal_var=False, alternative="less")
    p_slower, p_worse = _or_one(float(slower.pvalue)), _or_one(float(worse.pvalue))
    low, high = scipy.stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    ratio = math.exp(float(b.mean() - a.mean()))
    noise = noise_floor([list(old), list(new)], num_pairs=min(len(old), len(new)))
    outcome = Outcome.INCONCLUSIVE
    if p_slower <= ALPHA and ratio > noise:
        outcome = Outcome.FAIL
    elif p_worse <= PASS_ALPHA and noise <= MAX_NOISE:
        outcome = Outcome.PASS
    interval = (math.exp(float(low)), math.exp(float(high)))
    return Judgement(outcome, ratio, interval, p_slower, p_worse, min(len(old), len(new)), noise, is_clear=True)


def _p_above(logs: np.ndarray, value: float) -> float:
    """One-sided p-value of Student's t that the mean lies at `value` or below; without any scatter it is certain."""
    if np.ptp(logs) == 0:
        return 0.0 if float(logs[0]) > value else 1.0
    t = (float(logs.mean()) - value) * math.sqrt(len(logs)) / float(logs.std(ddof=1))
    return float(scipy.special.stdtr(len(logs) - 1, -t))


def _p_below(logs: np.ndarray, value: float) -> float:
    """One-sided p-value of Student's t that the mean lies at `value` or above."""
    return _p_above(-logs, -value)


def _spent(p_values: Sequence[float], num_looks: int) -> float:
    """The p-value over all looks so far, each of which may spend an equal share of the error."""
    return min(1.0, num_looks * min(p_values, default=1.0))


def _or_one(p_value: float) -> float:
    """Two sides without any scatter have no p-value: nothing is proven."""
    return 1.0 if math.isnan(p_value) else p_value
