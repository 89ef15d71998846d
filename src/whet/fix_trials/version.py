"""Compare versions of a training script: a fresh process runs each version for some optimiser steps."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.comparison.run import Run
from whet.measure.evidence import Losses
from whet.measure.isolate import Outcome
from whet.measure.load import Load, cause_of, quiet_blocks, total

NUM_WARM_UP = 3  # steps of each process that fill caches and start workers
_ENOUGH = 0.5  # of a process's steps have to be quiet


@dataclass(frozen=True)
class ScriptVersion:
    """Describe a version of a script.

    Attributes:
        name: The version's name. Names are unique within a comparison.
        start: The function that runs the version in a process of its own.
    """

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
    blocks = value.get("blocks", ())
    seconds, busy = _quiet_steps(value["seconds"], blocks)
    return Run(
        seconds=statistics.median(seconds),
        num_calls=len(seconds),
        load=total(Load(**block["load"]) for block in blocks),
        busy=busy,
        peak_bytes=value["cuda_peak_bytes"] or value["peak_bytes"],
        cuda_peak_bytes=value["cuda_peak_bytes"],
        evidence=Losses(by_step=tuple(value["losses"])),
        details={"report": value["report"]},
    )


def _quiet_steps(seconds: Sequence[float], blocks: Sequence[Mapping[str, Any]]) -> tuple[Sequence[float], str]:
    """Return the seconds of the steps that count, and what disturbed too many of them ("" for nothing)."""
    loads = [Load(**block["load"]) for block in blocks]
    flags = [
        is_quiet for block, is_quiet in zip(blocks, quiet_blocks(loads), strict=True) for _ in range(block["num_steps"])
    ]
    flags += [True] * (len(seconds) - len(flags))
    warm = list(zip(seconds, flags, strict=True))[NUM_WARM_UP:] or [(seconds[-1], flags[-1])]
    quiet = [step_s for step_s, is_quiet in warm if is_quiet]
    if len(quiet) >= _ENOUGH * len(warm):
        return quiet, ""
    return [step_s for step_s, _ in warm], cause_of(loads)


def middle(runs: Sequence[Run]) -> Run:
    """Return the run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
