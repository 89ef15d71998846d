"""Compare versions of a training script: a fresh process runs each version for some optimiser steps."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.comparison.run import Run
from whet.measure.evidence import Losses
from whet.measure.isolate import Outcome
from whet.measure.load import Load, total
from whet.scripts.injection.step_times import quiet_steps


@dataclass(frozen=True)
class ScriptVersion:
    """Describe a version of a script, with a name of its own in a comparison; `start` runs it in a new process."""

    name: str
    start: Callable[[], Outcome]

    def run(self) -> Run:
        """Run the script for some steps. The run holds the seconds of a step and, as evidence, the losses."""
        return run_of(self.start())


def run_of(outcome: Outcome) -> Run:
    """Convert what a script's process returned to a run. The run's details hold the report of the phases."""
    if outcome.value is None:
        assert outcome.failure is not None
        return Run(failure=outcome.failure.message)
    value = outcome.value
    return run_of_steps(
        value["seconds"],
        value.get("blocks", ()),
        peak_bytes=value["cuda_peak_bytes"] or value["peak_bytes"],
        cuda_peak_bytes=value["cuda_peak_bytes"],
        evidence=Losses(by_step=tuple(value["losses"])),
        details={"report": value["report"]},
    )


def run_of_steps(seconds: Sequence[float], blocks: Sequence[Mapping[str, Any]], **known: Any) -> Run:
    """Return what the steps of a process measured, for a comparison; `known` are further fields of the run."""
    quiet_s, busy = quiet_steps(seconds, blocks)
    load = total(Load(**block["load"]) for block in blocks)
    return Run(seconds=statistics.median(quiet_s), num_calls=len(quiet_s), load=load, busy=busy, **known)


def middle(runs: Sequence[Run]) -> Run:
    """Return the run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
