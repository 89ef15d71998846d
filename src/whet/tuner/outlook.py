"""What fits into a budget: about how long trials and finals take, and what is left undone when the time is up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.tuner.budget import Budget, needed_for
from whet.tuner.facts import TargetFacts
from whet.tuner.records import TrialRecord

ROUNDS = 8  # of the finals
MIN_ROUNDS = 6  # with fewer pairs, the signed-rank test cannot reach 5 %
RUN_S = 0.7  # of timing in each process of the finals
TIMING_S = 2.4  # of interleaved timing in a trial
MIN_TRIAL_S = 2.0  # no trial is begun with less

_START_S = 2.0  # of a process of the finals, before it loads anything
_BUILD_S = 5.0  # of a trial, before one has been seen: to convert, save and load the model
_MIN_CALLS = 5  # that a process of the finals times
_PAIR_CALLS = 64  # that a trial makes at least, to time a variant beside the original
_FINALS_SHARE = 0.4  # of the budget is kept for the finals, at most


@dataclass(frozen=True)
class Costs:
    """About how long each part of a search takes, in seconds.

    trial_s: one trial. original_s, variant_s: one process of the finals.
    """

    trial_s: float
    original_s: float
    variant_s: float

    @classmethod
    def estimate(cls, facts: TargetFacts, records: Sequence[TrialRecord]) -> "Costs":
        """From what the examination of the target took, and from the trials so far."""
        profiles = facts.profiles
        num_calls = sum(count for _, count in profiles)
        call_s = sum(profile.total_s * count for profile, count in profiles) / num_calls
        timed_calls = num_calls * (1 + math.ceil(_MIN_CALLS / num_calls))
        variant_s = _START_S + max(1.5 * RUN_S, timed_calls * call_s)
        original_s = variant_s + facts.open_s + (num_calls + 2) * call_s
        taken = [record.seconds for record in records if record.seconds > 0]
        trial_s = facts.examined_s + _BUILD_S + max(1.5 * TIMING_S, _PAIR_CALLS * call_s)
        return cls(sum(taken) / len(taken) if taken else trial_s, original_s, variant_s)

    def finals_s(self, num_variants: int, rounds: int = ROUNDS) -> float:
        """How long so many rounds of the original and `num_variants` variants take. Each variant is reloaded before."""
        return rounds * (self.original_s + num_variants * self.variant_s) + num_variants * _START_S

    def needed_s(self, spent_s: float) -> float:
        """Return a budget into which one trial and its finals fit, after `spent_s` of examination."""
        return needed_for(spent_s + self.trial_s + self.finals_s(1, MIN_ROUNDS))


@dataclass(frozen=True)
class Outlook:
    """What fits into the rest of a budget.

    search_s: how long trials may be begun, from now. stop_s: when one that is still at work is ended, from now.
    has_verdict: whether a trial and the finals fit. elapsed_s: before the search; spent_s: of that, what a search that
    goes on will spend again, which is all but measuring the machine's limits.
    """

    budget_s: float
    elapsed_s: float
    spent_s: float
    search_s: float
    stop_s: float
    has_verdict: bool
    costs: Costs
    has_trials: bool

    @classmethod
    def of(cls, budget: Budget, facts: TargetFacts, records: Sequence[TrialRecord] = ()) -> "Outlook":
        """Divide what is left of the budget. records: the trials of the search that this one goes on with."""
        costs = Costs.estimate(facts, records)
        has_finalist = any(record.status == "done" for record in records)
        build_s = costs.trial_s if has_finalist else 0.0  # an earlier search's artefact is made again
        kept_s = min(_FINALS_SHARE * budget.seconds, costs.finals_s(2))
        stop_s = budget.left_at_most_s - costs.finals_s(1, MIN_ROUNDS) - build_s
        search_s = min(budget.left_s - kept_s, stop_s)
        has_verdict = stop_s >= (0 if has_finalist else costs.trial_s)
        if not has_verdict:
            stop_s = budget.left_at_most_s - costs.original_s
            search_s = min(budget.left_s, stop_s)
        return cls(
            budget_s=budget.seconds,
            elapsed_s=budget.elapsed_s,
            spent_s=budget.elapsed_s - facts.limits_s,
            search_s=search_s,
            stop_s=stop_s,
            has_verdict=has_verdict,
            costs=costs,
            has_trials=bool(records),
        )

    @property
    def num_trials(self) -> int:
        """About how many trials there is time for. The first of a search is made wherever it may begin at all."""
        fitting = max(0, int(self.search_s / self.costs.trial_s))
        return fitting if self.has_trials or self.stop_s < MIN_TRIAL_S else max(1, fitting)

    @property
    def sentence(self) -> str:
        """What fits, for the user, before the search begins."""
        spent = f"Looking at the model took {self.elapsed_s:.0f} s of the {self.budget_s:g} s."
        trials = (
            f"{'more ' if self.has_trials else ''}trials of about {self.costs.trial_s:.0f} s each: {self.num_trials}"
        )
        if self.has_verdict:
            finals_s = self.costs.finals_s(1, MIN_ROUNDS)
            return f"{spent} What fits: {trials}; then finals, about {finals_s:.0f} s for one variant."
        return (
            f"{spent} What fits: {trials}; no finals, so nothing can be proved. A verdict takes a budget of about "
            f"{self.costs.needed_s(self.spent_s):.0f} s."
        )


def going_on(num_untried: int, command: str) -> str:
    """One line for the end: how many techniques the time did not reach, and the command that goes on."""
    techniques = "technique is" if num_untried == 1 else "techniques are"
    return f"{num_untried} {techniques} untried, as the time was up. To go on: {command}"
