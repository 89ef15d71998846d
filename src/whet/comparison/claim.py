"""Record the outcome of a comparison: a claim about two variants, with its evidence and its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from whet.comparison.run import Run
from whet.measure.evidence import Agreement
from whet.measure.load import NO_LOAD, Load
from whet.measure.stats import MAX_NOISE, log_ratios, paired_ratio, signed_rank
from whet.ui.notebook import Shown

_SIGNIFICANT = 0.05


class Verdict(StrEnum):
    PASS = "pass"  # the claim holds
    FAIL = "fail"  # the claim does not hold, and that is known
    INCONCLUSIVE = "inconclusive"  # the evidence does not tell


@dataclass(frozen=True, kw_only=True)
class Claim(Shown):
    """Hold a claim about a new variant beside an old one, and what was measured for it.

    The claim itself is the stopping rule's: "the new variant is faster" for most of them, "the new variant is not
    slower by the tolerance or more" for `Sequential`.

    Attributes:
        ratio: Old time over new time, as the geometric mean over the pairs: 2.0 is twice as fast. None without pairs.
        ci95: The 95 % interval of the ratio.
        p_value: The probability that two equal variants look at least this different, by the rule's own test.
        noise: The ratio that as many pairs of equal variants could show by chance; 1.0 where that is unknown.
        num_pairs: The pairs that count.
        old_s: Seconds per call of the old variant, one value for each pair.
        new_s: Seconds per call of the new variant, one value for each pair.
        is_clear: Whether further pairs would not change the verdict.
        agreement: How closely the two variants' evidence agrees; None where there is none to compare.
        load: What other processes did during all runs, including the runs that do not count.
        busy: What disturbed the comparison, if a busy machine left it undecided or the user chose to go on despite it.
        failure: Why a variant could not be measured; "" where both could.
        failed: The name of the side that could not be measured.
        doubt: Why the times prove nothing although they seem to; "" where there is no doubt.
        seconds: Wall time of the whole comparison.
        pairs: The runs behind `old_s` and `new_s`.
    """

    verdict: Verdict
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    p_value: float | None = None
    noise: float = 1.0
    num_pairs: int = 0
    old_s: tuple[float, ...] = ()
    new_s: tuple[float, ...] = ()
    is_clear: bool = False
    agreement: Agreement | None = None
    load: Load = NO_LOAD
    busy: str = ""
    failure: str = ""
    failed: str = ""
    doubt: str = ""
    seconds: float = 0.0
    pairs: tuple[tuple[Run, Run], ...] = ()

    @property
    def is_gain(self) -> bool:
        """Return whether the claim holds."""
        return self.verdict is Verdict.PASS

    def __repr__(self) -> str:
        parts = [str(self.verdict)]
        if self.ratio is not None:
            parts.append(f"ratio {self.ratio:.3g}")
        if self.ci95 is not None:
            parts.append(f"95% {self.ci95[0]:.3g}–{self.ci95[1]:.3g}")
        parts += [f"p {self.p_value:.2g}"] if self.p_value is not None else []
        parts.append(f"{self.num_pairs} pairs")
        parts += [text for text in (self.busy and f"busy: {self.busy}", self.doubt, self.failure) if text]
        return f"Claim({', '.join(parts)})"

    @property
    def slowdown(self) -> float | None:
        """Return new time over old time: 1.02 is two percent slower."""
        return None if self.ratio is None else 1 / self.ratio

    @property
    def slowdown_ci95(self) -> tuple[float, float] | None:
        """Return the 95 % interval of the slowdown."""
        return None if self.ci95 is None else (1 / self.ci95[1], 1 / self.ci95[0])


def claim_of(old_s: Sequence[float], new_s: Sequence[float], *, noise: float = 1.0, seed: int = 0) -> Claim:
    """Judge the claim "the new variant is faster" from paired times, in any unit.

    old_s[i] and new_s[i] were measured side by side. `noise` is that of a Claim, and `seed` that of the bootstrap.

    Raises:
        ValueError: The samples are empty, of unequal length, or hold times that are not positive and finite.
    """
    ratio, ci95 = paired_ratio(old_s, new_s, seed=seed)
    p_value = signed_rank(log_ratios(old_s, new_s))
    return Claim(
        verdict=_verdict(ratio, ci95, p_value, noise),
        ratio=ratio,
        ci95=ci95,
        p_value=p_value,
        noise=noise,
        num_pairs=len(old_s),
        old_s=tuple(old_s),
        new_s=tuple(new_s),
    )


def _verdict(ratio: float, ci95: tuple[float, float], p_value: float, noise: float) -> Verdict:
    """Return PASS where three conditions hold at once: interval above 1, significant, and above the noise."""
    is_noisy = noise > MAX_NOISE
    if ci95[0] > 1 and p_value < _SIGNIFICANT and ratio > noise and not is_noisy:
        return Verdict.PASS
    if ci95[1] < 1 or (ci95[1] <= noise and not is_noisy):
        return Verdict.FAIL
    return Verdict.INCONCLUSIVE
