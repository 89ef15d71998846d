"""Run the trials of a search for training, and turn what their processes found into records."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.comparison.run import Run, on_common_calls
from whet.core.recipe import Recipe, Step
from whet.tuner.budget import Runner, run_within
from whet.tuner.records import TrainingEvidence, TrialRecord
from whet.tuner.search import without_answer
from whet.tuner.training.facts import KnownTraining, TrainingFacts
from whet.tuner.training.steps_process import StepsRequest, time_steps
from whet.tuner.training.trial import (
    LossRequest,
    LossRun,
    TrainingMeasured,
    TrainingTrial,
    run_training_trial,
    train_for_loss,
)

TIMING_S = 3.0
NEIGHBOUR_S = 2.0  # seconds of timing of the original after each trial
_UNTIMED_STEPS = 5  # about so many that warm a process up, or end its timing late
_LIMIT_S = 300.0


@dataclass(frozen=True)
class TrainingContext:
    """Describe where a search for training works.

    Attributes:
        directory: Where trials write, and where the gradients lie.
        renew: Lets the processes that follow have other addresses and hashes than those before.
        most_loss: The size of a loss beyond which a trial diverges.
        num_known: The steps of the original, whose losses `most_loss` comes from.
    """

    target: str
    facts: TrainingFacts
    directory: Path
    run: Runner
    renew: Callable[[], None] = lambda: None
    trial_limit_s: float = _LIMIT_S
    most_loss: float = math.inf
    num_known: float = math.inf

    @property
    def known(self) -> KnownTraining:
        return KnownTraining(
            target=self.target,
            directory=self.directory,
            batches=self.facts.batches,
            next_batches=self.facts.next_batches,
        )

    def original(self, left_s: float) -> TrainingMeasured:
        return self.measure((), self.directory / "original-trial", left_s)

    def original_fault(self, num_steps: int, left_s: float) -> str:
        """Return how the original diverges within so many steps; "" where it does not, or where there is no time."""
        request = LossRequest(target=self.target, seed=None, num_steps=num_steps)
        folder = self.directory / f"original-{num_steps}-steps"
        outcome = run_within(self.run, train_for_loss, request, folder, limit_s=self.trial_limit_s, left_s=left_s)
        found = outcome.answer(LossRun)
        return "" if found is None else found.failure

    def measure(self, steps: tuple[Step, ...], folder: Path, left_s: float) -> TrainingMeasured:
        """Try a recipe in a process of its own; empty for the original. A failure there is part of the answer."""
        request = TrainingTrial(
            known=self.known, steps=steps, timing_s=TIMING_S, most_loss=self.most_loss, num_known=self.num_known
        )
        outcome = run_within(self.run, run_training_trial, request, folder, limit_s=self.trial_limit_s, left_s=left_s)
        return outcome.answer(TrainingMeasured) or TrainingMeasured(outcome=without_answer(outcome))


class InterleavedBaseline:
    """Time the original anew after each trial, so that a trial is compared with what ran just before and after it.

    The speed of a machine drifts by more than most techniques gain. The original's processes are short: they build the
    training, make the first steps, and time some more. They prove and compile nothing.
    """

    def __init__(self, context: TrainingContext, first: Run) -> None:
        """Begin with the original as it was timed before the first trial."""
        self._context = context
        self._taken_s: list[float] = []
        self._before = first
        self._num_runs = 0

    @property
    def process_s(self) -> float:
        """Return about how many seconds a process of the original takes, as those of the finals are."""
        facts = self._context.facts
        guess_s = facts.open_s + NEIGHBOUR_S + _UNTIMED_STEPS * facts.profile.total_s
        return statistics.mean(self._taken_s) if self._taken_s else guess_s

    def around(self, left_s: float) -> list[Run]:
        """Return the original's runs just before and just after a trial that has now ended.

        Where the one after it fails or finds no time, the one before it stands alone.
        """
        self._num_runs += 1
        context = self._context
        request = StepsRequest(target=context.target, timing_s=NEIGHBOUR_S)
        folder = context.directory / f"neighbour-{self._num_runs}"
        limit_s = context.trial_limit_s
        outcome = run_within(context.run, time_steps, request, folder, limit_s=limit_s, left_s=left_s)
        before, after = self._before, outcome.answer(Run)
        if after is None:
            return [before]
        self._taken_s.append(outcome.seconds)
        self._before = after
        return [before, after]


def record_of(
    context: TrainingContext, originals: InterleavedBaseline, number: int, recipe: Recipe, left_s: float
) -> TrialRecord:
    """Try a recipe, and time it beside the original, in the `left_s` seconds of the budget that are left."""
    began = time.perf_counter()
    found = context.measure(recipe.steps, context.directory / f"trial-{number}", left_s)
    outcome = found.outcome
    if outcome.status == "failed" and found.num_steps > context.num_known:  # it diverged, perhaps as the original does
        left_s -= time.perf_counter() - began
        if context.original_fault(found.num_steps, left_s):
            outcome = outcome.model_copy(update={"reason": f"{outcome.reason}, and without the recipe too"})
    record = TrialRecord(
        **dict(outcome),
        number=number,
        steps=recipe.steps,
        fingerprint=context.facts.fingerprint,
    )
    if found.run is not None:
        beside = originals.around(left_s - (time.perf_counter() - began))
        record = record.model_copy(update=timed(context.facts, beside, found.run, found.outcome.training))
    return record.model_copy(update={"seconds": time.perf_counter() - began})


def timed(
    facts: TrainingFacts, originals: Sequence[Run], run: Run, evidence: TrainingEvidence | None
) -> dict[str, object]:
    """Return the fields of a record that come from its times beside the original's, on the same steps.

    The ratios to the original's runs, of which there is at least one, are averaged.
    """
    pairs = [on_common_calls(original, run) or (original, run) for original in originals]
    speedup = statistics.geometric_mean(old.seconds / new.seconds for old, new in pairs)
    assert evidence is not None
    return {
        "latency_ms": run.seconds * 1e3,
        "baseline_latency_ms": speedup * run.seconds * 1e3,
        "speedup": speedup,
        "busy": run.busy or originals[-1].busy,
        "peak_bytes": evidence.memory.peak_bytes if evidence.memory is not None else None,
        "training": evidence.model_copy(update={"throughput_per_s": facts.num_samples / run.seconds}),
    }
