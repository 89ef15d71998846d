"""Prove that a changed training run reaches the same held-out loss, from pairs of runs with one seed and one order.

In a pair both runs see the same batches and draw the same numbers, so that most of what makes losses scatter falls out
of the difference. The claim holds once the upper end of a one-sided interval of the mean relative loss of quality lies
below what is allowed, and that of its extrapolation, since a gap that grows is no equal training. The interval is
Student's t; looking after each pair is paid for by sharing the error among the looks (Bonferroni).
"""

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel
from scipy.special import stdtrit

LEAST, MOST = 3, 8  # pairs
LOOKS = (3, 4, 6, 8)  # numbers of pairs after which the claim is judged
ERROR = 0.05  # of all looks together
HELD_OUT, TRAINING_LOSS = "held-out loss", "training loss"
_LEAST_LEARNT = 10.0  # times the allowed drop that the original has to learn: who learns nothing loses nothing


class LossPair(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Hold the scores of two runs with one seed.

    Attributes:
        old: The original's score at the end.
        new: The changed run's.
        old_middle: The original's in the middle of the run.
        new_middle: The changed run's.
        begin: The score before the first step.
        old_failure: Where the original's run diverged or failed; "" where it did not.
        new_failure: The same of the changed run.
    """

    seed: int
    old: float
    new: float
    old_middle: float
    new_middle: float
    begin: float
    old_failure: str = ""
    new_failure: str = ""

    @property
    def old_fault(self) -> str:
        """Return why the original's run tells nothing, in words; "" where it does."""
        return self.old_failure or _not_finite(self.old, self.old_middle, self.begin)

    @property
    def new_fault(self) -> str:
        """Return why the changed run is no training, in words; "" where it is one."""
        return self.new_failure or _not_finite(self.new, self.new_middle)


class LossProof(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Hold what pairs of runs prove.

    Attributes:
        is_same: Whether the claim holds; None where the pairs do not tell.
        drop: The mean relative loss of quality; negative is better.
        most: The upper end of its one-sided interval.
        grown: The upper end of the interval of the drop, extrapolated by as much as it grew in the second half.
        allowed: The drop that is allowed.
        doubt: Why the pairs cannot tell, whatever the interval; "" where they can.
        failure: How a run failed, where that proves that the trainings differ; "" where none did.
        score: What the pairs compare: the name of the held-out score, or "training loss" where a workload has none.
    """

    is_same: bool | None
    drop: float
    most: float
    grown: float
    allowed: float
    pairs: tuple[LossPair, ...] = ()
    doubt: str = ""
    failure: str = ""
    score: str = HELD_OUT

    @property
    def is_unfinished(self) -> bool:
        """Return whether more pairs could tell more: not where the original itself fails, or where all were made."""
        return self.is_same is None and not self.doubt and len(self.pairs) < MOST

    @property
    def words(self) -> str:
        drop = round(self.drop, 4) + 0.0  # no negative zero
        told = f"{drop:+.2%} over {len(self.pairs)} pairs, {self.most:+.2%} at most; {self.allowed:.2%} is allowed"
        if self.is_same:
            return f"same {self.score}: {told}"
        if self.failure:
            return f"worse {self.score}: {self.failure}"
        if self.doubt:
            return f"the {self.score} is open: {self.doubt}"
        if self.is_same is None:
            return f"the {self.score} is open: {told}"
        return f"worse {self.score}: {told}"


def judge(
    pairs: Sequence[LossPair],
    *,
    allowed: float,
    higher_is_better: bool = False,
    score: str = HELD_OUT,
    change: str = "the recipe",
) -> LossProof:
    """Judge pairs of runs. Where the original itself diverges in one, they cannot tell, whatever the other run did.

    Args:
        allowed: The drop that is allowed, as a fraction of the original's score.
        score: What the scores are, in words.
        change: What the second run of each pair has and the first one has not, in words.
    """
    if broken := next((pair for pair in pairs if pair.old_fault or pair.new_fault), None):
        worst = math.inf
        return LossProof(
            is_same=None if broken.old_fault else False,
            drop=worst,
            most=worst,
            grown=worst,
            allowed=allowed,
            pairs=tuple(pairs),
            doubt=_failing(broken, change) if broken.old_fault else "",
            failure="" if broken.old_fault else f"{broken.new_fault} (seed {broken.seed})",
            score=score,
        )
    sign = -1.0 if higher_is_better else 1.0
    drops = [sign * (pair.new - pair.old) / abs(pair.old) for pair in pairs]
    middles = [sign * (pair.new_middle - pair.old_middle) / abs(pair.old_middle) for pair in pairs]
    later = [2 * end - middle for end, middle in zip(drops, middles, strict=True)]
    error = ERROR / len(LOOKS)
    (least, most), (_, grown) = _interval(drops, error), _interval(later, error)
    doubt = _doubt(pairs, allowed, sign)
    is_same: bool | None = None
    if len(pairs) in LOOKS:  # other looks are not paid for
        is_same = True if max(most, grown) < allowed and not doubt else False if least > allowed else None
    return LossProof(
        is_same=is_same,
        drop=statistics.fmean(drops),
        most=most,
        grown=grown,
        allowed=allowed,
        pairs=tuple(pairs),
        doubt=doubt if len(pairs) in LOOKS else "",
        score=score,
    )


def _not_finite(*scores: float) -> str:
    return next((f"its score is {score}" for score in scores if not math.isfinite(score)), "")


def _failing(pair: LossPair, change: str) -> str:
    """Return how the original's own run fails, and whether the changed run does too."""
    other = f", with and without {change}" if pair.new_fault else f"; with {change} it does not fail"
    return (
        f"the original's own run with seed {pair.seed} fails: {pair.old_fault}{other}. Nothing can be held against "
        "that; mend the training first, as with a smaller learning rate or clipped gradients"
    )


def _doubt(pairs: Sequence[LossPair], allowed: float, sign: float) -> str:
    """Return why pairs cannot tell whether two trainings are the same; "" where they can."""
    if len(pairs) > 1 and len({pair.old for pair in pairs}) == 1:
        return (
            "every seed gave the same run, so that there is one pair alone; let the seed change the order of the data"
        )
    learnt = statistics.fmean(sign * (pair.begin - pair.old) / abs(pair.begin) for pair in pairs)
    if learnt < _LEAST_LEARNT * allowed:
        return f"the original itself improved by {learnt:.2%} in these runs, too little to tell; give a larger budget"
    return ""


def is_over(proof: LossProof) -> bool:
    """Return whether no further pair is needed. Only after certain numbers of pairs may that be decided."""
    number = len(proof.pairs)
    return (
        number >= MOST or (number in LOOKS and proof.is_same is not None) or math.isinf(proof.drop) or bool(proof.doubt)
    )


def _interval(values: Sequence[float], error: float) -> tuple[float, float]:
    """Return the ends of one-sided intervals of the mean, below and above."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean, number = statistics.fmean(values), len(values)
    width = float(stdtrit(number - 1, 1 - error)) * statistics.stdev(values) / math.sqrt(number)
    return mean - width, mean + width
