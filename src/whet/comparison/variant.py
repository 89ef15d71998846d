"""Build and measure a variant in a process of its own."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.comparison import child
from whet.comparison.run import Run
from whet.measure.allocator import steady
from whet.measure.evidence import Evidence
from whet.measure.isolate import QUIET, Failure, FailureKind, Job, Outcome, address_of, run_isolated
from whet.measure.measurable import Measurable


@dataclass(frozen=True)
class Variant:
    """Describe one side of a comparison: how it is built, and the process that builds and measures it.

    Attributes:
        build: Builds what is measured, from `arguments`. A function that a fresh process can import.
        arguments: The function's arguments, which must be JSON.
        directory: Where the processes' files lie; evidence stays there.
        budget_s: Seconds of timing in each process, if it is quiet.
        time_limit_s: Seconds after which a process is ended.
        environment: Variables that the process has beside this one's.
        working_directory: The process's working directory; this one's, if not given.
        with_evidence: Whether the first process collects evidence.
    """

    name: str
    build: Callable[..., Measurable]
    arguments: Mapping[str, Any]
    directory: Path
    budget_s: float = 1.0
    time_limit_s: float = 300.0
    memory_limit_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    with_evidence: bool = True
    _seen: list[Evidence] = field(default_factory=list, compare=False, repr=False)

    def run(self) -> Run:
        job = self.job()
        outcome = run_isolated(
            job.function,
            job.arguments,
            job.directory,
            time_limit_s=self.time_limit_s,
            memory_limit_bytes=self.memory_limit_bytes,
            environment=job.environment,
            working_directory=self.working_directory,
        )
        return self.with_known_evidence(run_of(outcome))

    def with_known_evidence(self, run: Run) -> Run:
        """Return a run with the evidence of the first process. It holds for all of them, disturbed or not."""
        if run.evidence is not None:
            self._seen[:] = [run.evidence]
        return run.model_copy(update={"evidence": self._seen[0]}) if self._seen and not run.failure else run

    def job(self) -> Job:
        """Return what a process of this variant is started with: how to build it, and where its files go."""
        number = next(i for i in itertools.count() if not (self.directory / str(i)).exists())
        directory = self.directory / str(number)
        request = child.Request(
            build=address_of(self.build),
            arguments=dict(self.arguments),
            budget_s=self.budget_s,
            evidence=str(directory) if self.with_evidence and not self._seen else None,
        )
        environment = {**QUIET, **steady(), **self.environment}
        return Job(child.measure_alone, request, directory, environment, self.working_directory)


def run_of(outcome: Outcome) -> Run:
    """Return what a process gave as a run; a failure is part of it."""
    run = outcome.answer(Run)
    if run is None:
        assert outcome.failure is not None
        return Run(failure=in_words(outcome.failure))
    return run


def in_words(failure: Failure) -> str:
    """Return a failure in words that also say what to do."""
    if failure.kind is FailureKind.MEMORY:
        return f"does not fit into memory: {failure.message}"
    return failure.message
