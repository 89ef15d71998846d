"""Plan what fits into a budget: estimate how long trials and finals take, and say what remains undone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.tuner.budget import Budget, needed_for
from whet.tuner.facts import TargetFacts
from whet.tuner.plan import runs_compiler
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space

ROUNDS = 8  # in the finals
MIN_ROUNDS = 6  # with fewer pairs, the signed-rank test cannot reach 5 %
RUN_S = 0.7  # seconds of timing in each process of the finals
TIMING_S = 2.4  # seconds of interleaved timing in a trial
MIN_TRIAL_S = 2.0  # no trial begins with fewer seconds left

_START_S = 2.0  # to start a process of the finals, before it loads anything, at least; with CUDA it takes 8 to 13 s
_BUILD_S = 5.0  # to convert, save and load the model in a trial; used until one has been timed
_COMPILING = 6.0  # times the start of a process: a trial was built in 22 to 53 s where that took 4.6 s
_STOPPING_S = 2.0  # to end a trial that is stopped
_MIN_CALLS = 5  # the fewest calls that a process of the finals times
_PAIR_CALLS = 64  # the fewest calls that a trial makes to time a variant beside the original
_SAVING_SHARE = 0.1  # the least share of the budget that is kept for saving the original
_FINALS_SHARE = 0.4  # the largest share of the budget that is kept for the finals


@dataclass(frozen=True)
class Costs:
    """Estimate how long each part of a search takes.

    Attributes:
        original_s, variant_s: Seconds of one process of the finals that measures the original, or a variant.
    """

    trial_s: float
    original_s: float
    variant_s: float
    start_s: float = _START_S

    @classmethod
    def estimate(cls, facts: TargetFacts, records: Sequence[TrialRecord]) -> "Costs":
        profiles = facts.profiles
        num_calls = sum(count for _, count in profiles)
        call_s = sum(profile.total_s * count for profile, count in profiles) / num_calls
        timed_calls = num_calls * (1 + math.ceil(_MIN_CALLS / num_calls))
        start_s = max(_START_S, facts.start_s)
        variant_s = start_s + max(1.5 * RUN_S, timed_calls * call_s)
        original_s = variant_s + facts.open_s + (num_calls + 2) * call_s
        space = Space(facts.applicable)
        taken = [r.seconds for r in records if r.seconds > 0 and not runs_compiler(space, r.steps)]
        trial_s = facts.start_s + facts.examined_s + _BUILD_S + max(1.5 * TIMING_S, _PAIR_CALLS * call_s)
        return cls(sum(taken) / len(taken) if taken else trial_s, original_s, variant_s, start_s)

    @property
    def compile_s(self) -> float:
        """Return about how many seconds a compiler takes in a trial. It runs as much code as many imports do."""
        return _COMPILING * self.start_s

    def finals_s(self, num_variants: int, rounds: int = ROUNDS) -> float:
        """Return the seconds of the finals with the original, and of one more load of each variant before them."""
        return rounds * (self.original_s + num_variants * self.variant_s) + num_variants * self.start_s

    def needed_s(self, spent_s: float) -> float:
        """Return a budget in seconds for one trial and its finals, after `spent_s` seconds of examination."""
        return needed_for(spent_s + self.trial_s + self.finals_s(1, MIN_ROUNDS))


@dataclass(frozen=True)
class BudgetPlan:
    """Describe what fits into the rest of a budget.

    Attributes:
        elapsed_s: Seconds that went by before the search.
        spent_s: The part of `elapsed_s` that a resumed search will spend again: all but measuring the machine's limits.
        search_s: For how many seconds from now trials may be started.
        stop_s: After how many seconds from now a trial that is still running is stopped.
        has_verdict: Whether there is time for a trial and the finals.
        has_trials: Whether an earlier search of the same study has trials.
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
    def of(cls, budget: Budget, facts: TargetFacts, records: Sequence[TrialRecord] = ()) -> "BudgetPlan":
        """Divide what is left of a budget that began with the examination, given the trials of a resumed search."""
        costs = Costs.estimate(facts, records)
        has_finalist = any(record.status == "done" for record in records)
        build_s = costs.trial_s if has_finalist else 0.0  # an earlier search's artefact is made again
        kept_s = min(_FINALS_SHARE * budget.seconds, costs.finals_s(2))
        stop_s = budget.left_at_most_s - costs.finals_s(1, MIN_ROUNDS) - build_s - _STOPPING_S
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
        """Return about how many trials there is time for; a new search with two seconds left counts at least one."""
        fitting = max(0, int(self.search_s / self.costs.trial_s))
        return fitting if self.has_trials or self.stop_s < MIN_TRIAL_S else max(1, fitting)

    @property
    def sentence(self) -> str:
        spent = f"Looking at the model took {self.elapsed_s:.0f} s"
        is_over = self.elapsed_s > self.budget_s
        spent += f", more than the budget of {self.budget_s:g} s." if is_over else f" of the {self.budget_s:g} s."
        more = "more " if self.has_trials else ""
        each = " each" if self.num_trials != 1 else ""
        trials = f"{self.num_trials} {more}trial{'s' * bool(each)} of about {self.costs.trial_s:.0f} s{each}"
        if self.has_verdict:
            finals_s = self.costs.finals_s(1, MIN_ROUNDS)
            return f"{spent} What fits: {trials}; then finals, about {finals_s:.0f} s for one variant."
        return (
            f"{spent} What fits: {trials}; no finals, so nothing can be proved. A verdict takes a budget of about "
            f"{self.costs.needed_s(self.spent_s):.0f} s."
        )


def saving_s(budget: Budget, facts: TargetFacts, records: Sequence[TrialRecord] = ()) -> float:
    """Return the seconds to keep for saving the original and loading it again.

    That is twice what it should take, since other processes may slow it down. It is less where a trial and its finals
    would not fit otherwise, but at least a tenth of the budget and 5 s.
    """
    outlook = BudgetPlan.of(budget, facts, records)
    wanted_s = 2 * (facts.examined_s + _BUILD_S + outlook.costs.start_s)
    spare_s = outlook.stop_s - outlook.costs.trial_s if outlook.has_verdict else 0.0
    return min(wanted_s, max(spare_s, _SAVING_SHARE * budget.seconds + _BUILD_S))


def going_on(num_untried: int, command: str, *, was_busy: bool = False) -> str:
    """Return one line for the end: how many techniques were not reached, why, and the command that goes on."""
    techniques = "technique is" if num_untried == 1 else "techniques are"
    why = "the machine was busy" if was_busy else "the time was up"
    return f"{num_untried} {techniques} untried, as {why}. To go on: {command}"
