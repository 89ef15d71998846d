"""Tune a training run: what the tuner's kind for a training workload does."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from whet.comparison.run import Run, Side
from whet.core.recipe import Recipe
from whet.errors import ModelError, OptionError
from whet.measure.isolate import FailureKind
from whet.techniques.proof.loss_proof import LEAST
from whet.tuner.asked import Asked
from whet.tuner.budget import Budget, BudgetEnded
from whet.tuner.finals import side_name
from whet.tuner.kind import Work
from whet.tuner.kind_options import KindWord
from whet.tuner.prepared_target import Prepared
from whet.tuner.processes import training_processes
from whet.tuner.records import TrialOutcome, TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.search import SearchTime
from whet.tuner.time_account import BATCHES
from whet.tuner.training.batch_sizes import try_batches
from whet.tuner.training.context import InterleavedBaseline, TrainingContext, record_of
from whet.tuner.training.examination import TrainingRequest, examine_training
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.finals import LEAST_STEPS, MOST_STEPS, RUN_S, PairServers, prove_losses, steps_side
from whet.tuner.training.soundness import out_of_memory
from whet.tuner.training.steps_process import StepsRequest
from whet.tuner.training.trained_kind import LOSSES_SHARE, TrainedKind, within_limits
from whet.tuner.verdict_costs import VerdictCosts
from whet.ui.figures import num_bytes

_EXAMINATION_LIMIT_S = 600.0
_SET_UP_AGAIN = 0.3  # of a recipe's set-up, in each process of the finals: what was compiled lies on disk
_BATCHES_SHARE = 0.3  # of the budget, where larger batches are measured too
_TRIAL_OVER_ORIGINAL = 1.5  # a trial also times the original anew


class TrainingKind(TrainedKind):
    """Make the steps of a training workload fast, or small; `preparing` hands the target over to child processes."""

    word: ClassVar[KindWord] = "training"

    facts: TrainingFacts
    number = 1  # of processes that share the training

    def __init__(self, asked: Asked, preparing: AbstractContextManager[Prepared]) -> None:
        super().__init__(asked)
        self._preparing = preparing

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        self._whole = work.budget
        if self.goal.allow_batch:
            kept = Budget((1 - _BATCHES_SHARE) * work.budget.seconds, clock=work.budget.clock)
            work = replace(work, budget=kept)
        self.work = work
        with (
            self._preparing as self._prepared,
            training_processes(self.asked.limit_bytes) as self._processes,
            tempfile.TemporaryDirectory(prefix="whet-train-") as scratch,
        ):
            self.target, self.words = self._prepared.name, self._prepared.words
            self._scratch = Path(scratch)
            yield

    def examine(self) -> TrainingFacts:
        scratch, budget_s = self._scratch, self.asked.budget_s
        request = TrainingRequest(
            target=self._prepared.address,
            directory=scratch,
            exclude=self.asked.exclude,
            budget_s=budget_s,
            num_processes=self.number,
        )
        run = self._whole.bounded(self._processes.run)
        outcome = run(examine_training, request, scratch / "examination", _EXAMINATION_LIMIT_S)
        if isinstance(outcome.failure, BudgetEnded):
            raise OptionError(
                f"to build and examine the training takes longer than a budget of {budget_s:g} s; give a larger "
                "--budget"
            )
        if outcome.failure is not None:
            if outcome.failure.kind is FailureKind.TIMEOUT:
                raise ModelError(f"to build and examine the training {outcome.failure.message}")
            if outcome.failure.kind is FailureKind.MEMORY:
                raise out_of_memory(scratch, outcome.failure)
            raise outcome.failure.as_error()
        facts = outcome.answer(TrainingFacts)
        assert facts is not None
        start_s = max(0.0, outcome.seconds - facts.examined_s - facts.limits_s)
        # The seconds of each process that is no fork hold its start.
        self.facts = facts.model_copy(update={"start_s": start_s if self._processes.are_forks else 0.0})
        self._check_memory()
        return self.facts

    def _check_memory(self) -> None:
        """Check that the parameters alone fit into the allowed memory.

        Raises:
            OptionError: They do not. Techniques that round can halve them at best.
        """
        most, least = self.goal.max_memory_bytes, self.facts.memory.parameter_bytes // 2
        if most is not None and most < least:
            raise OptionError(
                f"no step fits into {num_bytes(most)}: the parameters take {num_bytes(2 * least)}, in bfloat16 half of "
                "it; give more --max-memory"
            )

    def measure_original(self) -> None:
        budget, limit_s = self.work.budget, self.asked.trial_limit_s
        run = self._whole.bounded(self._processes.run)
        self.context = TrainingContext(
            self._prepared.address, self.facts, self._scratch, run, self._processes.renew, limit_s
        )
        self._processes.renew()  # data in an order of hashes is another one now, and the original is no longer the same
        began_s = budget.elapsed_s
        original = self.work.patience.measure(
            lambda: self.context.original(budget.left_at_most_s), lambda found: found.outcome.busy
        )
        self._trial_s = _TRIAL_OVER_ORIGINAL * (budget.elapsed_s - began_s)
        if original.outcome.status != "done" or original.run is None:
            raise ModelError(self.why_unmeasured(original.outcome))
        self._original, self._original_run = original, original.run
        self.context = replace(self.context, most_loss=original.most_loss, num_known=original.num_steps)
        self._originals = InterleavedBaseline(self.context, original.run)
        self._servers = PairServers(self._processes.renew)

    def why_unmeasured(self, outcome: TrialOutcome) -> str:
        """Return why the original cannot be measured."""
        return f"the original cannot be measured: {outcome.reason}"

    def title(self) -> str:
        facts = self.facts
        name = f"whet training {self.target} {self.goal.objective} {facts.model} {facts.loop} {facts.fingerprint}"
        return name + self.limits()

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        return self.time_for_trials(self._trial_s)

    @property
    def original_run(self) -> Run:
        return self._original_run

    def costs(self, finalists: Sequence[TrialRecord]) -> VerdictCosts:
        """Return what a trial and each part of the proof take; as long as there is no finalist, of a recipe like any.

        The runs for a loss take as many steps as fit into their share of the budget.
        """
        set_up_s = sum(record.training.set_up_s or 0.0 for record in finalists if record.training is not None)
        pairs_s = max(1, len(finalists)) * (self.facts.start_s + 2 * self._originals.process_s)
        losses_s = LOSSES_SHARE * self.work.budget.seconds
        return VerdictCosts(self._trial_s, pairs_s + _SET_UP_AGAIN * set_up_s, losses_s / LEAST)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        record = record_of(self.context, self._originals, number, recipe, left_s)
        record = record.model_copy(update={"predicted": self.space.bound(recipe.steps)})
        return within_limits(self.goal, record) if record.speedup is not None else record

    def side(self, record: TrialRecord | None) -> Side:
        steps = () if record is None else record.steps
        request = StepsRequest(target=self.context.target, steps=steps, timing_s=RUN_S)
        return steps_side(self.context, self._servers, side_name(record, "final"), request)

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        found = super().baseline(runs, records)
        return found.model_copy(update={"training": self._original.outcome.training})

    def prove(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        point.losses = prove_losses(
            self.context,
            point.steps,
            self._num_steps(point, self.work.budget),
            allowed=self.goal.max_drop,
            left_s=lambda: self.work.budget.left_at_most_s,
            report=self.work.listener.proved,
        )
        sound = [pair for pair in point.losses.pairs if not pair.old_fault] if point.losses is not None else []
        if sound:
            point.quality = sum(pair.new for pair in sound) / len(sound)
            baseline.quality = sum(pair.old for pair in sound) / len(sound)

    def _num_steps(self, point: MeasuredVariant, budget: Budget) -> int:
        """Return how many steps each run for the held-out loss makes, so that the least pairs fit into what is left."""
        facts = self.facts
        pair_s = max(5.0, budget.left_at_most_s / 4)
        step_s = facts.profile.total_s + point.latency_ms / 1e3
        return max(LEAST_STEPS, min(MOST_STEPS, int((pair_s - 2 * facts.open_s - 8) / step_s)))

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        found: dict[str, Any] = {
            "profile": self.facts.profile,
            "unsaved": "a training recipe changes the loop: apply it with whet.prepare(model, optimizer, loader, "
            "recipe=...)",
        }
        if self.goal.allow_batch:
            with self.work.account.part(BATCHES):
                found["larger_batches"] = try_batches(
                    self.context,
                    best.steps,
                    self._num_steps(best, self._whole),
                    allowed=self.goal.max_drop,
                    clock=self._whole.clock,
                    left_s=self._whole.left_s,
                    patience=self.work.patience,
                )
        return found
