"""Look for reasons to doubt a gain that the finals show: noise, or a screening that contradicts it."""

import math

from whet.comparison.claim import Claim
from whet.measure.quiet import QuietWait
from whet.measure.stats import MAX_NOISE
from whet.tuner import figures
from whet.tuner.budget_plan import TIMING_S
from whet.tuner.records import Timing, TrialRecord
from whet.tuner.trial import TrialRequest, screen_again
from whet.tuner.trial_context import TrialContext

_LIMIT_S = 180.0
_SHARED = 1.25  # sharing a process, its caches and its threads changes a ratio by at most this factor


def doubt_about(context: TrialContext, finalist: TrialRecord, claim: Claim, patience: QuietWait) -> str:
    """Return why a comparison cannot be believed, as a clause for people; "" where there is no reason for doubt.

    Where the screening showed another ratio than the finals (`claim`), it is measured once more before it counts.
    """
    if claim.noise > MAX_NOISE:
        return figures.spread(claim.noise)
    if finalist.speedup is None or finalist.speedup_ci95 is None:
        return ""
    if _agree(finalist.speedup, finalist.speedup_ci95, claim):
        return ""
    request = TrialRequest(
        known=context.known, steps=finalist.steps, directory=context.artefact(finalist.number), timing_s=TIMING_S
    )
    again = patience.measure(
        lambda: context.run(screen_again, request, context.directory / "screen", _LIMIT_S).answer(Timing),
        lambda found: found.busy if found else "",
    )
    if again is not None and _agree(again.speedup, again.speedup_ci95, claim):
        return ""
    screened = finalist.speedup if again is None else again.speedup
    return (
        f"beside the original in one process it is {screened:.2f}x as fast, in processes of its own {claim.ratio:.2f}x"
    )


def _agree(screened: float, ci95: tuple[float, float], final: Claim) -> bool:
    """Return whether intervals, noise between processes and a shared process explain the distance of two ratios.

    The screening is one pair of processes, the finals are `num_pairs`; the claim's noise floor is that of their mean.
    """
    assert final.ratio is not None and final.ci95 is not None
    process = math.log(final.noise) * math.sqrt(final.num_pairs)
    spread = math.hypot(_half_width(ci95), _half_width(final.ci95), process)
    return abs(math.log(screened / final.ratio)) <= spread + math.log(_SHARED)


def _half_width(ci95: tuple[float, float]) -> float:
    """Return half the width of an interval of ratios, in log space."""
    return math.log(ci95[1] / ci95[0]) / 2
