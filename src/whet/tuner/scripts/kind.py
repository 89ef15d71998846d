"""Tune a training script that stays as it is: what the tuner's kind for a script does, from outside."""

import contextlib
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from whet.comparison.run import Run, Side
from whet.core.recipe import Recipe
from whet.scripts.injection.command import ScriptOutcome
from whet.scripts.injection.script_command import ScriptCommand
from whet.techniques.proof.loss_proof import LossPair
from whet.tuner.asked import Asked
from whet.tuner.finals import NamedSide, side_name
from whet.tuner.goal import SCRIPT_STEPS
from whet.tuner.kind import Work
from whet.tuner.kind_options import KindWord
from whet.tuner.loss_pairs import prove_in_pairs
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.scripts.examination import examine
from whet.tuner.scripts.facts import ScriptFacts, facts_of
from whet.tuner.scripts.losses import loss_pair
from whet.tuner.scripts.proof import first_not_finite, judge
from whet.tuner.scripts.runs import ScriptRuns, timed_run
from whet.tuner.search import SearchTime
from whet.tuner.training.proof import exactness_of
from whet.tuner.training.trained_kind import TrainedKind, within_limits
from whet.tuner.training.words import run_command
from whet.tuner.verdict_costs import VerdictCosts

_RUN_LIMIT_S = 300.0


class ScriptKind(TrainedKind):
    """Make the steps of a script fast, or small, without a change of its lines; a run makes `num_steps` at the most."""

    word: ClassVar[KindWord] = "script"
    times_original_alone: ClassVar[bool] = False

    facts: ScriptFacts

    def __init__(self, asked: Asked, command: ScriptCommand, num_steps: int = SCRIPT_STEPS) -> None:
        super().__init__(asked)
        self._command = command
        self.target, self.words = shlex.join(command.words), command.words
        self._num_steps = num_steps

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        self.work = work
        with tempfile.TemporaryDirectory(prefix="whet-script-") as scratch:
            limit_s = min(_RUN_LIMIT_S, self.asked.budget_s)
            self.runs = ScriptRuns(self._command, Path(scratch), self._num_steps, limit_s)
            yield

    def examine(self) -> ScriptFacts:
        began = time.monotonic()
        self._examined = examine(self.runs, self._command.name, self.work.budget)
        self.facts = facts_of(self._command, self._examined, self.asked.exclude, time.monotonic() - began)
        return self.facts

    def title(self) -> str:
        facts = self.facts
        name = f"whet script {facts.name} {self.goal.objective} {facts.weights} {facts.fingerprint}"
        return f"{name} {self._num_steps} steps{self.limits()}"

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        return self.time_for_trials(self.runs.proof_s)

    def costs(self, finalists: Sequence[TrialRecord]) -> VerdictCosts:
        return self.runs.costs(len(finalists))

    @property
    def original_run(self) -> Run:
        return self._examined.timed

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        began, steps = time.monotonic(), recipe.steps
        record = TrialRecord(
            number=number,
            steps=steps,
            status="failed",
            predicted=self.space.bound(steps),
            fingerprint=self.facts.fingerprint,
        )
        found = self.runs.proof(steps, left_s=left_s)
        if found.record is None:
            return _without_record(record, found, time.monotonic() - began, left_s)
        losses = found.record.losses
        if (bad := first_not_finite(losses)) is not None:
            return record.model_copy(update={"reason": f"the loss of step {bad} is {losses[bad - 1]}"})
        original = self._examined.original
        why, evidence = judge(original, found, exactness_of(steps))
        run, own_s = timed_run(found), timed_run(original.run).seconds
        record = record.model_copy(
            update={
                "status": "rejected" if why else "done",
                "reason": why,
                "rejected_for": "quality" if why else None,
                "notes": found.record.notes,
                "latency_ms": run.seconds * 1e3,
                "baseline_latency_ms": own_s * 1e3,
                "speedup": own_s / run.seconds,
                "busy": run.busy,
                "training": evidence.model_copy(update={"throughput_per_s": 1 / run.seconds}),
            }
        )
        if not why and self.goal.needs_memory:
            record = self._with_memory(record, left_s - (time.monotonic() - began))
        return record.model_copy(update={"seconds": time.monotonic() - began})

    def _with_memory(self, record: TrialRecord, left_s: float) -> TrialRecord:
        """Return a trial with its memory, rejected if that is too much. A proof's own run holds more than a step."""
        began = time.monotonic()
        found = self.runs.timed(record.steps, left_s=left_s)
        if found.record is None:
            return _without_record(record, found, time.monotonic() - began, left_s)
        assert record.training is not None
        evidence = record.training.model_copy(update={"memory": found.record.memory})
        peak_bytes = timed_run(found).peak_bytes
        return within_limits(self.goal, record.model_copy(update={"peak_bytes": peak_bytes, "training": evidence}))

    def side(self, record: TrialRecord | None) -> Side:
        steps = () if record is None else record.steps
        return NamedSide(side_name(record, "final"), lambda: timed_run(self.runs.timed(steps)))

    def prove(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        def run_pair(seed: int) -> LossPair | None:
            has_time = self.work.budget.left_at_most_s > 2 * self.runs.longest_s
            return loss_pair(self.runs, point.steps, seed) if has_time else None

        point.losses = prove_in_pairs(
            run_pair,
            allowed=self.goal.max_drop,
            score=self.facts.quality_name,
            report=self.work.listener.proved,
        )

    @property
    def options(self) -> dict[str, str]:
        return {} if self._num_steps == SCRIPT_STEPS else {"--steps": str(self._num_steps)}

    def save(self, result: Result, directory: Path) -> None:
        """Say how to use the recipe."""
        result.unsaved = f"a training recipe changes the loop: {run_command(result)}"


def _without_record(record: TrialRecord, found: ScriptOutcome, seconds: float, left_s: float) -> TrialRecord:
    """Return a trial whose run gave none, as stopped where the budget's end cut it off, and as failed otherwise."""
    if seconds < left_s:
        return record.model_copy(update={"status": "failed", "reason": found.failure, "seconds": seconds})
    reason = f"was stopped after {seconds:.0f} s, which was all that the budget left for it"
    return record.model_copy(update={"status": "stopped", "reason": reason, "seconds": seconds})
