"""Hold what trials need: the target, what is known of it, the directory, and how child processes are run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.core.recipe import Step
from whet.measure.isolate import Failure, Outcome
from whet.tuner.budget import Runner
from whet.tuner.build import is_in_process
from whet.tuner.facts import TargetFacts
from whet.tuner.in_process import RebuildRequest, measure_rebuilt
from whet.tuner.known_target import INPUTS, FoundOfModel, KnownTarget
from whet.tuner.least_time import mean_least_time_s
from whet.tuner.records import TrialRecord
from whet.tuner.reloading import ReloadRequest, reload_failure
from whet.tuner.variant_process import VariantRequest, measure_variant


@dataclass(frozen=True)
class TrialContext:
    """Describe where a search works; trials write into `directory`, where the examination's files lie too."""

    target: str
    facts: TargetFacts
    directory: Path
    run: Runner
    trial_limit_s: float = 300.0

    @property
    def known(self) -> KnownTarget:
        found = {name: getattr(self.facts, name) for name in FoundOfModel.model_fields}
        return KnownTarget(target=self.target, directory=self.directory, **found)

    def artefact(self, number: int) -> Path:
        return self.directory / f"trial-{number}" / "artefact"

    def measure(self, record: TrialRecord | None, folder: Path, budget_s: float, limit_s: float) -> Outcome:
        """Time one variant in a fresh process: the original (None), a trial's artefact, or the result of its recipe."""
        if record is not None and is_in_process(record.steps):
            request = RebuildRequest(known=self.known, steps=record.steps, budget_s=budget_s)
            return self.run(measure_rebuilt, request, folder, limit_s)
        directory = None if record is None else self.artefact(record.number)
        return self.measure_artefact(directory, record.libraries if record else (), folder, budget_s, limit_s)

    def measure_artefact(
        self, directory: Path | None, libraries: Sequence[str], folder: Path, budget_s: float, limit_s: float
    ) -> Outcome:
        """Time an artefact in a fresh process that has none of the target's code; None times the original."""
        request = VariantRequest(
            target=self.target,
            signature=self.facts.signature,
            directory=directory,
            inputs=self.directory / INPUTS,
            budget_s=budget_s,
            num_threads=self.facts.num_threads,
            libraries=tuple(libraries),
            sys_path=self.facts.sys_path,
        )
        return self.run(measure_variant, request, folder, limit_s)

    def reload_failure(self, artefact: Path, libraries: Sequence[str]) -> Failure | None:
        request = ReloadRequest(
            directory=artefact,
            inputs=self.directory / INPUTS,
            libraries=tuple(libraries),
            sys_path=self.facts.sys_path,
            num_threads=self.facts.num_threads,
        )
        return reload_failure(self.run, request)

    def share_of_limit(self, steps: Sequence[Step], latency_ms: float) -> float:
        """Return the least time that the machine's limits allow, in the recipe's dtype, over the time measured."""
        least = mean_least_time_s(self.facts.profiles, self.facts.limits, steps)
        return least * 1e3 / latency_ms
