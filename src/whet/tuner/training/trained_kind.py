"""Hold what the kinds have in common whose recipes change a training loop: a training, and a script with one.

Each trial proves the first gradients and updates. What rounds, or has another optimiser, owes pairs of training runs to
a loss as well.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.techniques.names import check_excluded
from whet.techniques.proof.loss_proof import LEAST, MOST
from whet.techniques.technique import AnyTechnique
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness
from whet.tuner.asked import Asked
from whet.tuner.budget import needed_for
from whet.tuner.goal import MAX_DROP_TRAINING, MAX_SLOWDOWN, Goal, ranked
from whet.tuner.kind import Kind
from whet.tuner.points import finalist_point, is_smaller, original_point, screened_point
from whet.tuner.records import TrialRecord
from whet.tuner.report import write_report
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.search import SearchTime
from whet.tuner.space import Space
from whet.tuner.time_account import EXAMINATION, TRIALS
from whet.tuner.training.proof import exactness_of
from whet.tuner.training.report import render
from whet.tuner.training.space import COMPILE, worth_trying
from whet.tuner.training.words import gain_sentence
from whet.tuner.verdict_costs import VerdictCosts
from whet.ui.figures import num_bytes

LOSSES_SHARE = 0.25  # of the search's budget: what the finals leave to the proof of the loss, at the most
_SMALLER = 0.97  # of the original's peak, in each pair: what is called smaller


class TrainedKind(Kind):
    """Make the steps of a training fast, or small."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.goal = asked.goal.for_training()

    @property
    def table(self) -> Mapping[str, AnyTechnique]:
        """Return every technique that can be tried."""
        return TRAINING_TABLE

    def check(self) -> None:
        check_excluded(self.asked.exclude, list(self.table))

    @property
    def space(self) -> Space:
        return Space(self.facts.applicable, self.table, COMPILE, self.facts.peak_bytes)

    def space_to_search(self) -> Space:
        return worth_trying(self.facts.applicable, self.goal, self.facts.peak_bytes, self.table)

    def time_for_trials(self, trial_s: float) -> SearchTime:
        """Return how long trials may take, the first about `trial_s`; the proof keeps its time, if it fits at all."""
        budget = self.work.budget
        now, last_s = budget.clock(), budget.left_at_most_s

        def kept_s(records: Sequence[TrialRecord]) -> float:
            found = self._candidates(records)
            proofs = (self._costs(some).proof_s for some in (found, found[:1], found[1:]) if some or not found)
            return next((proof_s for proof_s in proofs if trial_s + proof_s <= last_s), 0.0)

        return SearchTime(now + budget.left_s, now + last_s, trial_s, budget.clock, kept_s=kept_s)

    @abstractmethod
    def costs(self, finalists: Sequence[TrialRecord]) -> VerdictCosts:
        """Return what a trial and each part of the proof of these finalists take, by what was measured so far."""

    def _costs(self, finalists: Sequence[TrialRecord]) -> VerdictCosts:
        """Return the costs, with no more for losses than their share of the budget."""
        found = self.costs(finalists)
        most_s = LOSSES_SHARE * self.work.budget.seconds / LEAST
        owes = any(self.is_owed(record.steps) for record in finalists)
        return VerdictCosts(found.trial_s, found.round_s, min(found.loss_pair_s, most_s) if owes else 0.0)

    def _candidates(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the best trial, and the best one that promises more: if the first reaches another loss, it stays."""
        best = ranked(self.goal, records)
        chosen, order = best[:1], list(Exactness)
        if chosen:
            first = order.index(exactness_of(chosen[0].steps))
            surer = (record for record in best if order.index(exactness_of(record.steps)) < first)
            chosen += [record for record in [next(surer, None)] if record is not None]
        if not self.goal.asks_for_speed:
            return chosen
        return [record for record in chosen if (record.speedup or 0) > 1]

    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the candidates whose proof fits into what is left: both, else the better one, else the surer one."""
        chosen, left_s = self._candidates(records), self.work.budget.left_at_most_s
        for some in (chosen, chosen[:1], chosen[1:]):
            if some and self._costs(some).proof_s <= left_s:
                return some
        # Fewer steps than that may tell of the loss too, but no fewer pairs of the finals.
        return [record for record in chosen[:1] if self._costs([record]).finals_s <= left_s]

    def proofs_s(self, finalists: Sequence[TrialRecord]) -> float:
        """Return the seconds that the proof of the loss keeps: what the shortest finals leave of them."""
        costs = self._costs(finalists)
        return max(0.0, min(costs.losses_s, self.work.budget.left_at_most_s - costs.finals_s))

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        """Return the original's point, by its trial where the finals did not measure it."""
        return original_point(runs or [self.original_run], self.facts.num_samples)

    @property
    @abstractmethod
    def original_run(self) -> Run:
        """Return the original as it was timed before the first trial."""

    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        # A trial's quality is how alike the gradients are; that of a training is a loss.
        smaller = is_smaller(claim, _SMALLER)
        return finalist_point(record, claim, self.facts.num_samples, is_smaller=smaller, quality=None)

    def is_owed(self, steps: Sequence[Step]) -> bool:
        """Return whether only a loss can prove that a recipe trains as well."""
        return exactness_of(steps) is not Exactness.EXACT

    def gained(self, best: MeasuredVariant, baseline: MeasuredVariant, reference: MeasuredVariant | None) -> str:
        return gain_sentence(self.facts.unit, baseline, best)

    def reference(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> MeasuredVariant | None:
        """Return torch.compile alone as measured in the finals, or else in its trial; None where it never was right."""
        found = next((point for point in points if _is_compile_alone(point.steps)), None)
        alone = (r for r in records if _is_compile_alone(r.steps) and r.speedup and r.rejected_for != "quality")
        screened = next(alone, None)
        return found or (None if screened is None else screened_point(screened, self.facts.num_samples, quality=None))

    def needed_s(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> float:
        spent = self.work.account.seconds
        spent_s = spent.get(EXAMINATION, 0.0) + spent.get(TRIALS, 0.0)
        num_trials = 0 if records else len(self.space_to_search().techniques)
        is_open = any(point.losses is not None and point.losses.is_unfinished for point in points)
        costs = self._costs(self._candidates(records))
        needed_s = costs.needed_s(spent_s, num_trials, MOST if is_open else LEAST)
        share = self.work.budget.seconds / self.asked.budget_s  # the rest is for larger batches
        return needed_for(max(needed_s / share, self.asked.budget_s + 1))

    def report(self, result: Result, directory: Path) -> None:
        write_report(result, directory / "report.html", render)

    def limits(self) -> str:
        """Return the limits of the search that are not the usual ones, for its name; "" where all are."""
        goal = self.goal
        found = {
            "drop": goal.max_drop if goal.max_drop != MAX_DROP_TRAINING else None,
            "memory": goal.max_memory_bytes,
            "slowdown": goal.max_slowdown if not goal.asks_for_speed and goal.max_slowdown != MAX_SLOWDOWN else None,
        }
        return "".join(f" {name} {value}" for name, value in found.items() if value is not None)


def _is_compile_alone(steps: Sequence[Step]) -> bool:
    return [step.technique for step in steps] == ["compile"]


def within_limits(goal: Goal, record: TrialRecord) -> TrialRecord:
    """Return a record, rejected where it needs too much memory or, for memory, too much time."""
    assert record.speedup is not None
    if goal.max_memory_bytes is not None and (record.peak_bytes or 0) > goal.max_memory_bytes:
        taken, allowed = num_bytes(record.peak_bytes or 0), num_bytes(goal.max_memory_bytes)
        reason = f"a step takes {taken}, more than the {allowed} allowed"
        return record.model_copy(update={"status": "rejected", "rejected_for": "memory", "reason": reason})
    if goal.objective == "memory" and 1 / record.speedup > goal.most_slowdown:
        reason = f"a step takes {1 / record.speedup:.2f} times the original's time; {goal.most_slowdown:g} is allowed"
        return record.model_copy(update={"status": "rejected", "rejected_for": "slowdown", "reason": reason})
    return record
