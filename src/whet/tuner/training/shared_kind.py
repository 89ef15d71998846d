"""Tune a training that several processes of this machine share: whet tune --nproc."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from whet.core.recipe import Recipe
from whet.files import write_whole
from whet.measure.cores import allowed_cores
from whet.measure.isolate import Arguments, Function, Outcome
from whet.techniques.technique import AnyTechnique
from whet.tuner.asked import Asked
from whet.tuner.budget import Runner
from whet.tuner.kind import Work
from whet.tuner.points import screened_point
from whet.tuner.prepared_target import Prepared
from whet.tuner.processes import TrainingProcesses, shared_processes
from whet.tuner.records import TrialOutcome, TrialRecord
from whet.tuner.result import MeasuredVariant, RefusedTechnique, Result
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.kind import TrainingKind
from whet.tuner.training.plan_techniques import TRAINED_TABLE, applicable_plans, is_alone, plan_keys
from whet.tuner.training.shared_words import PLAN, num_threads, plan_file
from whet.ui.figures import counted

_OF_ONE = "each of the processes has its share of the cores"


class SharedTrainingKind(TrainingKind):
    """Make the steps of a training fast, or small, that so many processes share by rows.

    The original is the plan that people write by hand: DDP with its defaults. Where one process with all cores is
    faster, that is a recipe like others.
    """

    def __init__(self, asked: Asked, preparing: AbstractContextManager[Prepared], number: int) -> None:
        super().__init__(asked, preparing)
        self.number = number

    @property
    def table(self) -> Mapping[str, AnyTechnique]:
        return TRAINED_TABLE

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        with (
            super().at_work(work),
            shared_processes(self.number, num_threads(self.number), self.asked.limit_bytes) as shared,
        ):
            alone = self._processes

            def renew() -> None:
                alone.renew()
                shared.renew()

            self._processes = TrainingProcesses(chosen(alone.run, shared.run), renew, alone.are_forks)
            yield

    def examine(self) -> TrainingFacts:
        """Examine the training in one process, where gradients are known that a plan must keep."""
        facts = super().examine()
        own = [entry for entry in facts.applicable if entry.technique != "threads"]
        refused = [RefusedTechnique(technique="threads", reason=_OF_ONE)] * (len(own) < len(facts.applicable))
        cores = len(allowed_cores())
        hints = () if self.number <= cores else (f"{self.number} processes share {counted(cores, 'core')}",)
        self.facts = facts.model_copy(
            update={
                "applicable": tuple(own),
                "refused": (*facts.refused, *refused),
                "hints": (*facts.hints, *hints),
            }
        )
        return self.facts

    def measure_original(self) -> None:
        """Measure the original on all processes, which tells what a plan may save of its step."""
        super().measure_original()
        facts, shared, evidence = self.facts, self._original.shared, self._original.outcome.training
        assert shared is not None and evidence is not None and evidence.memory is not None
        plans = applicable_plans(evidence.memory, shared, self.number, self.asked.exclude)
        words = f"In one process, {facts.diagnosis.sentence[:1].lower()}{facts.diagnosis.sentence[1:]}"
        self.facts = facts.model_copy(
            update={
                "applicable": (*plans, *facts.applicable),
                "peak_bytes": evidence.memory.peak_bytes,
                "diagnosis": facts.diagnosis.model_copy(update={"sentence": f"{words} {shared.words(self.number)}"}),
            }
        )

    def why_unmeasured(self, outcome: TrialOutcome) -> str:
        if outcome.rejected_for != "quality":
            return super().why_unmeasured(outcome)
        return (
            f"shared by {self.number} processes, this would be another training ({outcome.reason}): the loss must be "
            "the mean over the rows of its batch, and what is computed of a row must not depend on other rows"
        )

    def title(self) -> str:
        return f"{super().title()} processes {self.number}"

    def next_recipe(
        self, records: Sequence[TrialRecord], *, with_reference: bool, may_compile: bool = True
    ) -> Recipe | None:
        """Return the next recipe, that of one process first: it says whether several pay at all."""
        alone = next((entry.default for entry in self.space.techniques.values() if is_alone([entry.default])), None)
        if alone is not None and not any(record.steps == (alone,) for record in records):
            return Recipe(steps=(alone,))
        return super().next_recipe(records, with_reference=with_reference, may_compile=may_compile)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        record = super().attempt(number, recipe, left_s)
        return record.model_copy(update={"predicted": None}) if is_alone(recipe.steps) else record

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        alone = next((record for record in records if is_alone(record.steps) and len(record.steps) == 1), None)
        point = None if alone is None else screened_point(alone, self.facts.num_samples, quality=None)
        return super().details(records, best) | {
            "num_processes": self.number,
            "plan": None if is_alone(best.steps) else plan_keys(best.steps),
            "one_process": best if alone is not None and best.steps == alone.steps else point,
        }

    @property
    def options(self) -> dict[str, str]:
        return {"--nproc": str(self.number)}

    def save(self, result: Result, directory: Path) -> None:
        """Write the plan that is kept, as `whet train` and whet.ParallelPlan take it."""
        super().save(result, directory)
        write_whole(directory / PLAN, plan_file(result))


def chosen(alone: Runner, shared: Runner) -> Runner:
    """Return what runs a function in one process or in several: a recipe says which; without one it is one."""

    def run(function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
        steps = getattr(arguments, "steps", None)
        runner = alone if steps is None or is_alone(steps) else shared
        return runner(function, arguments, directory, time_limit_s)

    return run
