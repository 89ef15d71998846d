"""Tune the calls of a model: what the tuner's kind for inference does."""

import contextlib
import shlex
import shutil
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from whet.comparison.claim import Claim, Verdict
from whet.comparison.run import Run, Side
from whet.comparison.schedules import Rounds, Schedule
from whet.core.artefact.runtime import MANIFEST
from whet.core.recipe import Recipe, Step
from whet.core.recipe_file import FILE as RECIPE
from whet.errors import ModelError, OptionError
from whet.measure.isolate import FailureKind, Outcome
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.asked import Asked
from whet.tuner.budget import BudgetEnded, Runner, needed_for
from whet.tuner.budget_plan import MIN_ROUNDS, ROUNDS, BudgetPlan, Costs, saving_s
from whet.tuner.build import is_in_process
from whet.tuner.doubt import doubt_about
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import ranked
from whet.tuner.kind import Kind, OtherKind, Work
from whet.tuner.kind_options import KindWord
from whet.tuner.model_points import gain_sentence, measured, screened_original
from whet.tuner.model_sides import model_side, peak_bytes_of
from whet.tuner.plan import compile_only
from whet.tuner.points import finalist_point, is_smaller, original_point, screened_point
from whet.tuner.preparation import check_memory, prepare_work_directory
from whet.tuner.prepared_target import Prepared
from whet.tuner.processes import forking
from whet.tuner.records import TrialRecord
from whet.tuner.reloading import refusal
from whet.tuner.report import render, write_report
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.saving import save_model, saved_original
from whet.tuner.search import SearchTime, drop_losers, try_recipe
from whet.tuner.space import Space
from whet.tuner.target_examination import Examination, ExaminationRequest, examine_any
from whet.tuner.trial_context import TrialContext
from whet.tuner.verdict import is_beaten
from whet.workloads.text_encoder import identity_of

_EXAMINATION_LIMIT_S = 180.0
_SMALLER = 0.99  # of the original's peak: what is called smaller


class ModelKind(Kind):
    """Make the calls of a model fast; `preparing` hands the target over to child processes.

    With `may_be_training`, only building the target tells of which kind it is.
    """

    word: ClassVar[KindWord] = "inference"
    schedule: ClassVar[Schedule] = Rounds()
    noise_from: ClassVar[Literal["original", "pairs"]] = "original"

    facts: TargetFacts

    def __init__(
        self, asked: Asked, preparing: AbstractContextManager[Prepared], *, may_be_training: bool = False
    ) -> None:
        super().__init__(asked)
        self._preparing = preparing
        self._may_be_training = may_be_training
        self._is_fair = True

    def check(self) -> None:
        """Check the options; what only goes with a model waits where the target may be a training."""
        if not self._may_be_training:
            self.goal.check_for_model()
            check_memory(self.goal.max_memory_bytes)
        check_excluded(self.asked.exclude, [*TABLE, *TRAINING_TABLE] if self._may_be_training else list(TABLE))

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        self.work, self._whole = work, work.budget
        with self._preparing as self._prepared, forking(self.asked.limit_bytes) as unbounded:
            self.target, self.words = self._prepared.name, self._prepared.words
            self._unbounded: Runner = unbounded
            yield
            if hasattr(self, "context"):  # after an error or Ctrl-C, a resumed search goes on with what lies there
                shutil.rmtree(self.context.directory, ignore_errors=True)

    def examine(self) -> TargetFacts | OtherKind:
        """Examine in a child process. Disturbed times are not measured again, since no verdict depends on them."""
        target, run = self._prepared, self.work.budget.bounded(self._unbounded)
        request = ExaminationRequest(target=target.address, directory=target.scratch, exclude=self.asked.exclude)
        outcome = run(examine_any, request, target.scratch, _EXAMINATION_LIMIT_S)
        if isinstance(outcome.failure, BudgetEnded) and self.work.patience.cause:
            raise OptionError(
                f"to build, call and examine the model takes longer than a budget of {self.asked.budget_s:g} s on "
                f"this busy machine ({self.work.patience.cause}); try again when it is quiet, or give a larger --budget"
            )
        found = examined(outcome, self.asked.budget_s)
        if isinstance(found, OtherKind):
            return found
        if self._may_be_training:
            self.goal.check_for_model()
            check_memory(self.goal.max_memory_bytes)  # that of a training is what it adds to such a process
        self.facts = found
        return found

    def title(self) -> str:
        """Return the study's name. A shared storage may hold studies of other models of that name, or other weights."""
        goal = self.goal
        name = f"whet {self._prepared.name} {goal.objective} {goal.max_drop} {goal.max_memory_bytes}"
        return f"{name} {self.facts.weights}" if self.asked.storage else name

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        """Divide the budget; a part of it is kept for saving the original."""
        whole = self.work.budget
        budget = whole.keeping(saving_s(whole, self.facts, records))
        self.work, run = replace(self.work, budget=budget), budget.bounded(self._unbounded)
        work = prepare_work_directory(self._prepared.scratch, directory)
        self.context = TrialContext(self._prepared.address, self.facts, work, run, self.asked.trial_limit_s)
        self._outlook = BudgetPlan.of(budget, self.facts, records)
        self.work.listener.planned(self._outlook)
        now, costs = budget.clock(), self._outlook.costs
        return SearchTime(
            now + self._outlook.search_s, now + self._outlook.stop_s, costs.trial_s, budget.clock, costs.compile_s
        )

    @property
    def space(self) -> Space:
        return Space(self.facts.applicable)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        return try_recipe(self.context, self.goal, number, recipe, self.space, left_s)

    def tidy(self, records: Sequence[TrialRecord]) -> None:
        drop_losers(self.context, self.goal, records)

    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the best two, one where time is short, or none where not even one fits.

        A fresh process has loaded and run the artefact of each. An artefact that is no longer on disk is made again.
        Trials that are far slower than the original are left out, since nobody needs proof of that.
        """
        chosen: list[TrialRecord] = []
        costs, budget = Costs.estimate(self.facts, records), self.work.budget
        for record in [r for r in ranked(self.goal, records) if not is_beaten(self.goal, r)][:3]:
            if len(chosen) == 2:
                break
            is_built = is_in_process(record.steps) or (self.context.artefact(record.number) / MANIFEST).is_file()
            build_s = 0.0 if is_built else max(record.seconds, costs.trial_s)
            if costs.finals_s(1, MIN_ROUNDS) + build_s > budget.left_at_most_s:
                continue  # another is there, or is built sooner
            if chosen and costs.finals_s(2, ROUNDS) + build_s > budget.left_s:
                break
            if not is_built:
                left_s = budget.left_at_most_s - costs.finals_s(1, MIN_ROUNDS)
                again = self.attempt(record.number, Recipe(steps=record.steps), left_s)
                if again.status != "done":
                    self._lose(record, again.reason if again.status != "stopped" else "")
                    continue
            if not is_in_process(record.steps):
                failure = self.context.reload_failure(self.context.artefact(record.number), record.libraries)
                if failure is not None:
                    self._lose(record, "" if isinstance(failure, BudgetEnded) else refusal(failure))
                    continue
            chosen.append(record)
        return chosen

    def _lose(self, record: TrialRecord, why: str) -> None:
        """Note why a trial no longer runs; not where only the budget's end cut it off ("")."""
        if why:
            self.lost[record.number] = f"{record.label}: {why}"

    def side(self, record: TrialRecord | None) -> Side:
        return model_side(self.context, record)

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        """Return the original's point. Its memory is that of the model alone, where memory is what is asked for."""
        facts = self.facts
        if not runs:
            return screened_original(facts, records)
        point = original_point(
            runs,
            facts.num_samples,
            size_bytes=facts.original_bytes,
            quality=facts.score,
            share_of_limit=self._share((), runs),
            **measured(runs),
        )
        if self.goal.objective == "memory":
            self._is_fair = hold_only_the_model(self.context, point)
        return point

    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        runs = [new for _, new in claim.pairs]
        point = finalist_point(
            record,
            claim,
            self.facts.num_samples,
            change=record.change,
            share_of_limit=self._share(record.steps, runs),
            is_smaller=is_smaller(claim, _SMALLER, baseline.peak_bytes),
            **measured(runs),
        )
        if point.speedup_ci95[0] > 1 and (doubt := doubt_about(self.context, record, claim, self.work.patience)):
            point.verdict, point.doubt = str(Verdict.INCONCLUSIVE), doubt
        return point

    def _share(self, steps: Sequence[Step], runs: Sequence[Run]) -> float | None:
        """Return the least time that the machine's limits allow a recipe over the time measured; None if disturbed."""
        if not all(run.counts for run in runs):
            return None
        return self.context.share_of_limit(steps, statistics.median(run.latency_ms for run in runs))

    def gained(self, best: MeasuredVariant, baseline: MeasuredVariant, reference: MeasuredVariant | None) -> str:
        quality = self.facts.quality_name
        return gain_sentence(self.goal, baseline, best, reference, quality, is_fair=self._is_fair)

    def reference(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> MeasuredVariant | None:
        alone = compile_only(self.space)
        if alone is None:
            return None
        found = next((point for point in points if point.steps == alone.key), None)
        screened = next((record for record in records if record.key == alone.key), None)
        return found or (screened_point(screened, self.facts.num_samples) if screened else None)

    def needed_s(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> float:
        """Return a budget for one trial and its finals, more than this one."""
        costs = Costs.estimate(self.facts, records)
        return max(costs.needed_s(self._outlook.spent_s), needed_for(self.asked.budget_s + 1))

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        directory, model_type = identity_of(self.target)
        return {"model_directory": directory, "model_type": model_type, "outlook": self._outlook.sentence}

    def save(self, result: Result, directory: Path) -> None:
        run = self._whole.bounded(self._unbounded)
        save_model(replace(self.context, run=run), result, directory)

    def save_told(self, result: Result, directory: Path) -> None:
        """Say where the model lies, and how to make it here."""
        recipe, out = directory / RECIPE, directory / "applied"
        command = shlex.join(["whet", "apply", str(recipe), str(self.words or self.target), "--out", str(out)])
        result.libraries = []
        result.unsaved = f"the model lies with {result.finals_on}; to make it here: {command}"

    def report(self, result: Result, directory: Path) -> None:
        write_report(result, directory / "report.html", render)


def examined(outcome: Outcome, budget_s: float) -> TargetFacts | OtherKind:
    """Return the facts that a child process found out about the target, or of which other kind it is.

    Raises:
        WhetError: The error that the process met.
    """
    if isinstance(outcome.failure, BudgetEnded):
        raise OptionError(
            f"to build, call and examine the model takes longer than a budget of {budget_s:g} s; give a larger --budget"
        )
    if outcome.failure is not None:
        if outcome.failure.kind is FailureKind.TIMEOUT:
            raise ModelError(f"to build and call the model {outcome.failure.message}; does it wait for something?")
        raise outcome.failure.as_error()
    found = outcome.answer(Examination)
    assert found is not None
    if found.facts is None:
        assert found.other is not None
        return OtherKind(found.other)
    start_s = max(0.0, outcome.seconds - found.facts.examined_s - found.facts.limits_s)
    return found.facts.model_copy(update={"start_s": start_s})


def hold_only_the_model(context: TrialContext, baseline: MeasuredVariant) -> bool:
    """Lower the original's peak memory to that of a process that loads it from an artefact, if that is less.

    The original's own process may also hold what its code builds beside the model, such as the data of a quality; no
    variant's process does. Return whether the original could be saved and measured in that way.
    """
    saved = saved_original(context)
    peak_bytes = None if saved.directory is None else peak_bytes_of(context, saved.directory, saved.libraries)
    baseline.peak_bytes = min(baseline.peak_bytes, peak_bytes or baseline.peak_bytes)
    return peak_bytes is not None
