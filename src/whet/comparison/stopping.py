"""Decide after how many pairs a comparison ends, and what its pairs prove.

A stopping rule sets the least and the greatest number of pairs, decides whether the pairs so far are enough, and
judges the claim in the end. Each rule keeps the error rate that it promises: `Sequential` corrects for every look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from whet.comparison import sequential
from whet.comparison.claim import Claim, Verdict, claim_of
from whet.comparison.tolerance import TOLERANCE
from whet.measure.stats import log_ratios, noise_floor, ratio_noise

MIN_SIGNIFICANT = 6  # pairs: with fewer, Wilcoxon's signed-rank test cannot fall below 5 %


class Stop(Protocol):
    """Define a stopping rule."""

    @property
    def most(self) -> int:
        """Return the greatest number of pairs."""

    @property
    def least(self) -> int:
        """Return the least number of pairs after which a time limit may end the comparison."""

    @property
    def spare(self) -> int:
        """Return how many rounds may be measured in place of disturbed ones."""

    def is_over(self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int) -> bool:
        """Return whether no further pair is needed.

        Args:
            old_s: Seconds per call of the old variant, by pair.
            new_s: Seconds per call of the new variant, by pair.
            num_claims: Claims that are judged together.
        """

    def judge(
        self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int, original_s: Sequence[float]
    ) -> Claim:
        """Judge the pairs; the arguments of `is_over` mean the same here.

        Args:
            original_s: All quiet times of the old variant, in order, including those that are in no pair.
        """

    def conclude(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims once all of them have ended, corrected for their number if the rule needs that."""


@dataclass(frozen=True)
class Fixed:
    """Measure a fixed number of pairs.

    PASS means faster: the interval lies above 1, the test is significant, and the ratio exceeds the noise floor.

    Attributes:
        most: The number of pairs.
        least: Pairs after which a time limit may end the comparison.
        spare: The most rounds that may replace disturbed ones.
        lost_after: A variant that is slower in each of its first `lost_after` pairs is measured no further, since it
            would have to win all other pairs, and by more. 0 turns this off.
        noise_from: Where the noise floor comes from. "original" uses the differences between successive processes of
            the original; it is for sides that are measured apart in random order. "pairs" uses the scatter of the
            ratios; it is for schedules that cancel drifts (turns, ABBA).
    """

    most: int = 8
    least: int = MIN_SIGNIFICANT
    spare: int = 4
    lost_after: int = 3
    noise_from: Literal["original", "pairs"] = "original"

    def is_over(self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int) -> bool:
        """Return whether the pairs are complete or lost; see Stop."""
        has_lost = 0 < self.lost_after <= len(old_s) and all(
            new >= old for old, new in list(zip(old_s, new_s, strict=True))[: self.lost_after]
        )
        return has_lost or len(old_s) >= self.most

    def judge(
        self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int, original_s: Sequence[float]
    ) -> Claim:
        """Judge the claim "the new variant is faster"; see Stop."""
        if self.noise_from == "pairs":
            return judged_faster(old_s, new_s, noise=ratio_noise(log_ratios(old_s, new_s)) if len(old_s) > 1 else 1.0)
        return judged_faster(old_s, new_s, noise=noise_floor([original_s]))

    def conclude(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims as they are."""
        return list(claims)


@dataclass(frozen=True)
class UntilClear:
    """Screen a variant with few pairs. Fresh pairs have to prove a gain that it shows.

    PASS means that the whole interval lies above 1. Since the rule looks after every pair, chance alone gives such an
    interval in more than 5 % of the cases.

    Attributes:
        most: The greatest number of pairs.
        least: Pairs after which an interval above 1, or a gain that is too small, ends the screening.
        spare: The most rounds that may replace disturbed ones.
        too_little: The ratio below which dozens of pairs would be needed to show a gain.
    """

    most: int = 6
    least: int = 3
    spare: int = 0
    too_little: float = 1.02

    def is_over(self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int) -> bool:
        """Return whether the variant is clearly faster, hardly faster, or slower twice; see Stop."""
        if len(old_s) >= self.most:
            return True
        if len(old_s) == 2 < self.least:
            return all(new > old * self.too_little for old, new in zip(old_s, new_s, strict=True))
        if len(old_s) < self.least:
            return False
        claim = judged_faster(old_s, new_s)
        assert claim.ci95 is not None and claim.ratio is not None
        return claim.ci95[0] > 1 or claim.ratio < self.too_little

    def judge(
        self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int, original_s: Sequence[float]
    ) -> Claim:
        """Judge by the interval alone; see Stop."""
        claim = judged_faster(old_s, new_s)
        if claim.ci95 is None:
            return claim
        if claim.ci95[0] > 1 and claim.num_pairs >= self.least:
            return replace(claim, verdict=Verdict.PASS)
        return replace(claim, verdict=Verdict.FAIL if claim.ci95[1] < 1 else Verdict.INCONCLUSIVE)

    def conclude(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims as they are."""
        return list(claims)


@dataclass(frozen=True)
class Sequential:
    """Measure pairs until a look decides the claim "the new variant is not slower by the tolerance or more".

    FAIL means that the new variant is proven to be slower, whatever the tolerance. sequential.py explains the test.

    Attributes:
        tolerance: The slowdown that passes: 0.02 is two percent.
        looks: Numbers of pairs after which to decide. The last one is the greatest number of pairs.
    """

    tolerance: float = TOLERANCE
    looks: tuple[int, ...] = sequential.LOOKS

    @property
    def most(self) -> int:
        """Return the number of pairs at the last look."""
        return self.looks[-1]

    @property
    def least(self) -> int:
        """Return the number of pairs at the first look."""
        return self.looks[0]

    @property
    def spare(self) -> int:
        """Return how many rounds may replace disturbed ones: as many as there may be pairs."""
        return self.looks[-1]

    def is_over(self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int) -> bool:
        """Return whether a look has decided; see Stop. Numbers of pairs between two looks decide nothing."""
        return len(old_s) in self.looks and self.judge(old_s, new_s, num_claims, old_s).is_clear

    def judge(
        self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int, original_s: Sequence[float]
    ) -> Claim:
        """Judge the pairs at the looks so far; see Stop."""
        if len(old_s) < 2:
            return Claim(verdict=Verdict.INCONCLUSIVE, num_pairs=len(old_s), old_s=tuple(old_s), new_s=tuple(new_s))
        return sequential.judge(old_s, new_s, tolerance=self.tolerance, num_benchmarks=num_claims, looks=self.looks)

    def conclude(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims with Holm's correction for their number."""
        return sequential.holm(claims)


def judged_faster(old_s: Sequence[float], new_s: Sequence[float], *, noise: float = 1.0) -> Claim:
    """Judge the claim "the new variant is faster". It is inconclusive with fewer than two pairs."""
    if len(old_s) < 2:
        return Claim(verdict=Verdict.INCONCLUSIVE, num_pairs=len(old_s), old_s=tuple(old_s), new_s=tuple(new_s))
    return claim_of(old_s, new_s, noise=noise)
