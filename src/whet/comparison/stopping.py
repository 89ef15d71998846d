"""Stopping rules: after how many pairs a comparison ends, and what its pairs prove.

A rule is a value. It says how many pairs there are at least and at most, whether the pairs so far are enough, and what
the claim is worth in the end. Each keeps the error it promises: `Sequential` pays for every look at the pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from whet.comparison import sequential
from whet.comparison.claim import Claim, Verdict, claim_of
from whet.measure.stats import log_ratios, noise_floor, ratio_noise

MIN_SIGNIFICANT = 6  # pairs: with fewer, Wilcoxon's signed-rank test cannot fall below 5 %


class Stop(Protocol):
    """A stopping rule."""

    @property
    def most(self) -> int:
        """The most pairs there may be."""

    @property
    def least(self) -> int:
        """The fewest pairs after which a time limit may end the comparison."""

    @property
    def spare(self) -> int:
        """How many rounds may be measured in place of disturbed ones."""

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
        """Judge the pairs.

        Args:
            old_s: Seconds per call of the old variant, by pair.
            new_s: Seconds per call of the new variant, by pair.
            num_claims: Claims that are judged together.
            original_s: All quiet times of the old variant, in order, those that are in no pair included.
        """

    def conclude(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims as they stand once all of them have ended, corrected for their number if need be."""


@dataclass(frozen=True)
class Fixed:
    """A fixed number of pairs. PASS: faster, with the interval above 1, significant, and beyond the noise floor.

    Attributes:
        most: Pairs.
        least: Pairs after which a time limit may end the comparison.
        spare: Rounds in place of disturbed ones, at most.
        lost_after: A variant that is slower in each of its first so many pairs gets no more; 0: never. To pass in the
            end, it would have to win all others, and by more.
        noise_from: Where the noise floor comes from: "original", how its successive processes differ, for pairs whose
            sides are measured apart in random order; "pairs", how the ratios scatter, where the schedule cancels what
            drifts (turns, ABBA).
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
    """As few pairs as show whether it pays to go on with a variant: a screening, to be proved by fresh pairs.

    PASS: the whole interval lies above 1. Looking after every pair finds more such intervals by chance than 5 %.

    Attributes:
        most: Pairs.
        least: Pairs after which an interval above 1, or too little a gain, ends it.
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
    """Pairs until a look at them decides. The claim is "the new variant is not slower by the tolerance or more".

    FAIL means that the new variant is slower: proven, whatever the tolerance. sequential.py explains the test.

    Attributes:
        tolerance: The slowdown that passes: 0.02 is two percent.
        looks: Numbers of pairs after which to decide; the last is the most there will be.
    """

    tolerance: float = sequential.TOLERANCE
    looks: tuple[int, ...] = sequential.LOOKS

    @property
    def most(self) -> int:
        """The pairs at the last look."""
        return self.looks[-1]

    @property
    def least(self) -> int:
        """The pairs at the first look."""
        return self.looks[0]

    @property
    def spare(self) -> int:
        """As many rounds as there may be pairs."""
        return self.looks[-1]

    def is_over(self, old_s: Sequence[float], new_s: Sequence[float], num_claims: int) -> bool:
        """Return whether a look has decided; see Stop. Between looks nobody looks."""
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
    """Judge the claim "the new variant is faster"; without two pairs it is open."""
    if len(old_s) < 2:
        return Claim(verdict=Verdict.INCONCLUSIVE, num_pairs=len(old_s), old_s=tuple(old_s), new_s=tuple(new_s))
    return claim_of(old_s, new_s, noise=noise)
