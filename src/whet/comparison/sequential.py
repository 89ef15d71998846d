"""Test whether code has become slower: a sequential test on process pairs, for one benchmark or for many.

old[i] and new[i] were measured side by side, each in a process of its own. The test looks at the mean log ratio at
fixed numbers of pairs. Student's t, with the process as the replicate, gives two one-sided p-values: one of "slower",
one of "slower by the tolerance or more". Each look may spend a share of the allowed error, and the shares sum to the
whole, so that looking often does not raise the error (Bonferroni over looks, an upper bound under any dependence).
Several benchmarks of one run share the error by Holm's procedure.

FAIL            slower: proven, and by more than the same code differs from itself here
PASS            not slower by the tolerance or more: proven
INCONCLUSIVE    neither, after the last pair

Sources: Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979); Lan and DeMets, "Discrete Sequential
Boundaries for Clinical Trials" (1983), on spending the error over looks.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from whet.comparison.claim import Claim, Verdict
from whet.comparison.tolerance import TOLERANCE
from whet.measure.stats import MAX_NOISE, log_ratios, noise_floor, paired_ratio, ratio_noise

ALPHA = 0.025  # of calling the same code slower, over all looks and all benchmarks of a run
PASS_ALPHA = 0.05  # of passing what is slower by the tolerance
LOOKS = (5, 8, 11, 15, 20)


def judge(
    old_s: Sequence[float],
    new_s: Sequence[float],
    *,
    tolerance: float = TOLERANCE,
    num_benchmarks: int = 1,
    looks: Sequence[int] = LOOKS,
) -> Claim:
    """Judge the claim "the new variant is not slower by the tolerance or more" from the pairs so far.

    Args:
        old_s: Times in any unit. old_s[i] and new_s[i] were measured side by side.
        tolerance: The slowdown that passes: 0.02 is two percent.
        num_benchmarks: Claims that are judged in the same run. Before the others have ended, a slowdown counts as
            clear only if no outcome of theirs could change that (Bonferroni). Call `holm` once all have ended.
        looks: Numbers of pairs after which to decide.

    Returns:
        The claim. Its p_value is the chance that equal variants look at least this slow, over all looks so far.

    Raises:
        ValueError: There are fewer than two pairs, or unequally many times.
    """
    if len(old_s) < 2:
        raise ValueError("two pairs at the least")
    ratio, ci95 = paired_ratio(list(old_s), list(new_s))
    logs = -log_ratios(old_s, new_s)  # above 0 where the new variant is slower
    p_slower, p_worse = p_values(logs, tolerance=tolerance, looks=looks)
    noise = ratio_noise(logs)
    verdict = _verdict(1 / ratio, noise, is_slower=p_slower <= ALPHA / num_benchmarks, is_fine=p_worse <= PASS_ALPHA)
    return Claim(
        verdict=verdict,
        ratio=ratio,
        ci95=ci95,
        p_value=p_slower,
        noise=noise,
        num_pairs=len(logs),
        old_s=tuple(old_s),
        new_s=tuple(new_s),
        is_clear=verdict is not Verdict.INCONCLUSIVE or len(logs) >= looks[-1],
    )


def p_values(logs: np.ndarray, *, tolerance: float, looks: Sequence[int] = LOOKS) -> tuple[float, float]:
    """Return the p-values of "slower" and of "not slower by the tolerance or more", over all looks so far.

    `logs` holds log(new / old) of each pair. `tolerance` and `looks` are those of `judge`.
    """
    taken = [n for n in looks if n <= len(logs)]
    p_slower = _spent([_p_above(logs[:n], 0.0) for n in taken], len(looks))
    p_worse = _spent([_p_above(-logs[:n], -math.log1p(tolerance)) for n in taken], len(looks))
    return p_slower, p_worse


def holm(claims: Sequence[Claim]) -> list[Claim]:
    """Correct claims that were judged together, once all have ended: ALPHA bounds the chance of any false FAIL.

    A claim without pairs is returned unchanged and does not count.
    """
    outcomes = [
        replace(c, verdict=Verdict.INCONCLUSIVE) if c.ratio is not None and c.verdict is Verdict.FAIL else c
        for c in claims
    ]
    judged = [i for i, claim in enumerate(claims) if claim.ratio is not None and not claim.failure]
    order = sorted(judged, key=lambda i: _p_of(claims[i]))
    for rank, i in enumerate(order):
        claim = claims[i]
        if _p_of(claim) > ALPHA / (len(order) - rank):
            break
        assert claim.slowdown is not None
        if claim.slowdown > claim.noise:
            outcomes[i] = replace(claim, verdict=Verdict.FAIL)
    return outcomes


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Return FAIL where one claim fails, else INCONCLUSIVE where one is open, else PASS."""
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        if verdict in verdicts:
            return verdict
    return Verdict.PASS


def judge_unpaired(old_s: Sequence[float], new_s: Sequence[float], *, tolerance: float = TOLERANCE) -> Claim:
    """Judge times that were not measured side by side, as against a saved baseline, by Welch's t on the logarithms.

    A change of the machine between the two measurements cannot be distinguished from a change of the code. The times
    are those of processes, in any one unit; `tolerance` is the slowdown that passes, as a fraction.

    Raises:
        ValueError: There are fewer than two processes on a side.
    """
    if min(len(old_s), len(new_s)) < 2:
        raise ValueError("two processes on each side at the least")
    old, new = np.log(np.asarray(old_s, dtype=float)), np.log(np.asarray(new_s, dtype=float))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal times have no variance, which scipy warns of
        slower = scipy.stats.ttest_ind(new, old, equal_var=False, alternative="greater")
        worse = scipy.stats.ttest_ind(new - math.log1p(tolerance), old, equal_var=False, alternative="less")
        low, high = scipy.stats.ttest_ind(old, new, equal_var=False).confidence_interval(0.95)
    p_slower, p_worse = _or_one(float(slower.pvalue)), _or_one(float(worse.pvalue))
    slowdown = math.exp(float(new.mean() - old.mean()))
    num_pairs = min(len(old_s), len(new_s))
    noise = noise_floor([list(old_s), list(new_s)], num_pairs=num_pairs)
    return Claim(
        verdict=_verdict(slowdown, noise, is_slower=p_slower <= ALPHA, is_fine=p_worse <= PASS_ALPHA),
        ratio=1 / slowdown,
        ci95=(math.exp(float(low)), math.exp(float(high))),
        p_value=p_slower,
        noise=noise,
        num_pairs=num_pairs,
        old_s=tuple(old_s),
        new_s=tuple(new_s),
        is_clear=True,
    )


def _verdict(slowdown: float, noise: float, *, is_slower: bool, is_fine: bool) -> Verdict:
    """Return FAIL for what is significantly slower by more than the noise, PASS for what surely is not.

    `is_slower` tells that "slower" is significant, and `is_fine` that "slower by the tolerance or more" is disproved.
    """
    if is_slower and slowdown > noise:
        return Verdict.FAIL
    return Verdict.PASS if is_fine and noise <= MAX_NOISE else Verdict.INCONCLUSIVE


def _p_of(claim: Claim) -> float:
    return 1.0 if claim.p_value is None else claim.p_value


def _p_above(logs: np.ndarray, value: float) -> float:
    """Return the one-sided p-value of Student's t that the mean is `value` or less; 0 or 1 without any scatter."""
    if np.ptp(logs) == 0:
        return 0.0 if float(logs[0]) > value else 1.0
    t = (float(logs.mean()) - value) * math.sqrt(len(logs)) / float(logs.std(ddof=1))
    return float(scipy.special.stdtr(len(logs) - 1, -t))


def _spent(p_values: Sequence[float], num_looks: int) -> float:
    """Return the p-value over all looks so far. Each look may spend an equal share of the error."""
    return min(1.0, num_looks * min(p_values, default=1.0))


def _or_one(p_value: float) -> float:
    """Return 1 for a p-value that is undefined because neither side scatters. Nothing is proven then."""
    return 1.0 if math.isnan(p_value) else p_value
