"""Tune a training that several processes of this machine share: whet tune --nproc."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tomli_w

from whet.core.recipe import Recipe
from whet.files import write_whole
from whet.measure.cores import allowed_cores
from whet.measure.isolate import Arguments, Function, Outcome
from whet.techniques.technique import AnyTechnique
from whet.tuner.asked import Asked
from whet.tuner.kind import Work
from whet.tuner.points import screened_point
from whet.tuner.prepared_target import Prepared
from whet.tuner.processes import SharedProcesses, TrainingProcesses, shared_processes
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, RefusedTechnique, Result
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.kind import TrainingKind
from whet.tuner.training.plan_techniques import ACCUMULATION, TRAINED_TABLE, applicable_plans, is_alone, plan_keys
from whet.tuner.training.shared_training import num_threads
from whet.ui.figures import counted

PLAN = "parallel.toml"
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

            self._processes = TrainingProcesses(_chosen(alone, shared), renew, alone.are_forks)
            yield

    def examine(self) -> TrainingFacts:
        """Examine the training in one process, where gradients are known that a plan must keep."""
        facts = super().examine()
        own = [entry for entry in facts.applicable if entry.technique != "threads"]
        refused = [RefusedTechnique(technique="threads", reason=_OF_ONE)] * (len(own) < len(facts.applicable))
        plans = applicable_plans(facts.memory, self.number, self.asked.exclude)
        words = f"In one process: {facts.diagnosis.sentence}"
        cores = len(allowed_cores())
        hints = () if self.number <= cores else (f"{self.number} processes share {counted(cores, 'core')}",)
        self.facts = facts.model_copy(
            update={
                "applicable": (*plans, *own),
                "refused": (*facts.refused, *refused),
                "diagnosis": facts.diagnosis.model_copy(update={"sentence": words}),
                "hints": (*facts.hints, *hints),
            }
        )
        return self.facts

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
        # What an exchange between processes costs is not known before a trial: a bound of it promises nothing.
        return record.model_copy(update={"predicted": None})

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        alone = next((record for record in records if is_alone(record.steps) and len(record.steps) == 1), None)
        return super().details(records, best) | {
            "num_processes": self.number,
            "plan": None if is_alone(best.steps) else {"zero_stage": 0, **plan_keys(best.steps)},
            "one_process": None if alone is None else screened_point(alone, self.facts.num_samples, quality=None),
        }

    @property
    def options(self) -> dict[str, str]:
        return {"--nproc": str(self.number)}

    def save(self, result: Result, directory: Path) -> None:
        """Write the plan that is kept, as `whet train` and whet.ParallelPlan take it."""
        super().save(result, directory)
        write_whole(directory / PLAN, plan_file(result))


def plan_file(result: Result) -> str:
    """Return the plan of a result as a TOML file, with how it is started."""
    number = result.num_processes
    lines = [f"Found by {result.command}" if result.command else f"Found for {result.target}"]
    if result.plan is None:
        lines.append(f"One process with all cores makes more steps than {number} processes: start it without torchrun")
        return "".join(f"# {line}\n" for line in lines)
    threads = num_threads(number)
    lines.append(f"Start it with OMP_NUM_THREADS={threads} torchrun --standalone --nproc-per-node {number} ...")
    parts = next((step.options.get("num_parts") for step in result.best.steps if step.technique == ACCUMULATION), None)
    if parts is not None:
        lines.append(f"whet train takes the {parts} parts of a batch from the recipe, a loop of one's own by num_parts")
    return "".join(f"# {line}\n" for line in lines) + "\n" + tomli_w.dumps({"parallel": result.plan})


def _chosen(alone: TrainingProcesses, shared: SharedProcesses) -> Any:
    """Return what runs a function in one process or in all: a recipe says which, and what has none is examined alone."""

    def run(function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
        steps = getattr(arguments, "steps", None)
        chosen = alone.run if steps is None or is_alone(steps) else shared.run
        return chosen(function, arguments, directory, time_limit_s)

    return run
