"""Search for techniques that make a script's steps faster: one after the other, each on top of those kept so far."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from whet.measure.quiet import Patience
from whet.recipe import Step
from whet.scripts.messages import ScriptRecord
from whet.step_profiler.phases import Phase
from whet.techniques.training import TRAINING_TABLE
from whet.training.technique import Exactness, TrainingStage
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.result import UntriedTechnique
from whet.tuner.scripts.proof import Original, first_not_finite, judge
from whet.tuner.scripts.runs import ScriptRuns, timed_run
from whet.tuner.training.trial import exactness_of
from whet.tuner.verdict import TIME_UP

_KEPT = 1.02  # the least speedup in the search: the finals prove it
_LEAST_SHARE = 0.02  # of a step, for a technique that changes one phase alone
_LEFT = {"autocast": 0.5, "compile": 0.6, "chunked_loss": 0.8, "channels_last": 0.8}  # of forward and backward
_LEFT_BY_OTHERS = 0.9


@dataclass(frozen=True)
class Candidate:
    """Describe one technique that may pay.

    Attributes:
        step: The technique with its options.
        promise: The speedup by which the order is decided. It is a rule of thumb, no measurement.
    """

    step: Step
    promise: float


def candidates(record: ScriptRecord, exclude: Sequence[str]) -> tuple[list[Candidate], list[UntriedTechnique]]:
    """Return what may pay in a script, the most promising first, and what cannot.

    Args:
        record: A watched run of the script as it is.
        exclude: Techniques that the user does not want.
    """
    found, cannot = list[Candidate](), list[UntriedTechnique]()
    update, data = record.shares.get("optimiser", 0.0), record.shares.get(Phase.DATA.label, 0.0)
    compute = sum(record.shares.get(name, 0.0) for name in ("forward", "backward", "rest"))
    for step in record.applicable:
        technique = TRAINING_TABLE[step.technique]
        if step.technique in exclude:
            continue
        if technique.changes_batches:
            saved = min(data, 1 - data)  # they are read beside the rest
        elif technique.stage is TrainingStage.OPTIMIZER:
            saved = update
        else:
            saved = compute * _saves(step)
        promise = 1 / max(1 - saved, 0.05)
        if technique.stage is TrainingStage.MEMORY:
            cannot.append(_cannot(step, 1.0, "it saves memory and costs time"))
        elif technique.stage is TrainingStage.OPTIMIZER and update < _LEAST_SHARE:
            cannot.append(_cannot(step, promise, f"the optimiser takes {update:.1%} of a step"))
        elif technique.changes_batches and data < _LEAST_SHARE:
            cannot.append(_cannot(step, promise, f"waiting for data takes {data:.1%} of a step"))
        else:
            found.append(Candidate(step, promise))
    return sorted(found, key=lambda one: -one.promise), cannot


def _saves(step: Step) -> float:
    return 1 - _LEFT.get(step.technique, _LEFT_BY_OTHERS)


def _cannot(step: Step, bound: float, reason: str) -> UntriedTechnique:
    return UntriedTechnique(technique=step.technique, bound=bound, reason=reason)


class ScriptSearch:
    """Try techniques on a script, one run each.

    Args:
        runs: Starts the runs.
        original: What is known of the script as it is.
        patience: How long to wait for a quiet machine.
        listener: Is told of each trial.

    Attributes:
        records: The trials.
        untried: What was not tried, with the reason.
    """

    def __init__(self, runs: ScriptRuns, original: Original, patience: Patience, listener: Listener) -> None:
        self.records: list[TrialRecord] = []
        self.untried: list[UntriedTechnique] = []
        self._runs = runs
        self._original = original
        self._patience = patience
        self._listener = listener
        self._base_s = timed_run(original.run).seconds

    def go(self, todo: Sequence[Candidate], left_s: float) -> None:
        """Try all candidates, then those that did not pay or were rejected alone once more on top of what was kept.

        What is wrong alone may be right in another layout: a compiler has other code for it.

        Args:
            todo: The candidates, the most promising first.
            left_s: Seconds after which no trial begins.
        """
        ends = time.monotonic() - self._patience.spent_s + left_s
        kept, again = TrialRecord(number=0, status="done", steps=(), speedup=1.0), list[Candidate]()
        for candidate in todo:
            if time.monotonic() - self._patience.spent_s > ends:
                self.untried.append(_cannot(candidate.step, candidate.promise, TIME_UP))
                continue
            if not _may_join(candidate, kept):
                again.append(candidate)
                continue
            record = self._tried(kept, candidate)
            if record is None:
                continue
            if _pays(record, kept):
                kept = record
            elif record.status in ("done", "rejected") and not kept.steps:
                again.append(candidate)
        for candidate in again:
            if not _may_join(candidate, kept):
                reason = "nothing that it needs beside it was kept"
                self.untried.append(_cannot(candidate.step, candidate.promise, reason))
            elif kept.steps and time.monotonic() - self._patience.spent_s <= ends:
                record = self._tried(kept, candidate)
                kept = record if record is not None and _pays(record, kept) else kept

    def _tried(self, kept: TrialRecord, candidate: Candidate) -> TrialRecord | None:
        """Try a technique on top of the kept ones. None where they exclude each other, or where it was tried."""
        groups = _groups_of(kept)
        names = {step.technique for step in kept.steps}
        technique = TRAINING_TABLE[candidate.step.technique]
        if technique.groups & groups or technique.name in names:
            return None
        steps = tuple(sorted([*kept.steps, candidate.step], key=lambda step: TRAINING_TABLE[step.technique].place))
        if any(record.steps == steps for record in self.records):
            return None
        began = time.monotonic()
        record = self._judged(len(self.records) + 1, steps, candidate.promise)
        record = record.model_copy(update={"seconds": time.monotonic() - began})
        self.records.append(record)
        self._listener.tried(record)
        return record

    def _judged(self, number: int, steps: tuple[Step, ...], predicted: float) -> TrialRecord:
        """Run the script with a recipe, and judge and time what it does."""
        outcome = self._patience.measure(lambda: self._runs.proof(steps), lambda found: timed_run(found).busy)
        if outcome.record is None:
            return TrialRecord(number=number, steps=steps, status="failed", reason=outcome.failure, predicted=predicted)
        losses = outcome.record.losses
        if (bad := first_not_finite(losses)) is not None:
            reason = f"the loss of step {bad} is {losses[bad - 1]}"
            return TrialRecord(number=number, steps=steps, status="failed", reason=reason, predicted=predicted)
        why, evidence = judge(self._original, outcome, exactness_of(steps))
        run = timed_run(outcome)
        return TrialRecord(
            number=number,
            steps=steps,
            status="rejected" if why else "done",
            reason=why,
            rejected_for="quality" if why else None,
            predicted=predicted,
            notes=outcome.record.notes,
            latency_ms=run.seconds * 1e3,
            baseline_latency_ms=self._base_s * 1e3,
            speedup=self._base_s / run.seconds,
            peak_bytes=run.peak_bytes,
            busy=run.busy,
            training=evidence,
        )


def _groups_of(record: TrialRecord) -> set[str]:
    return {group for step in record.steps for group in TRAINING_TABLE[step.technique].groups}


def _may_join(candidate: Candidate, kept: TrialRecord) -> bool:
    """Return whether what the technique needs beside it is kept."""
    return TRAINING_TABLE[candidate.step.technique].needs <= _groups_of(kept)


def _pays(record: TrialRecord, kept: TrialRecord) -> bool:
    return record.status == "done" and (record.speedup or 0.0) > _KEPT * (kept.speedup or 1.0)


def finalists(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the fastest trial, and the fastest exact one where the first one rounds: if its loss is open, it stays."""
    done = sorted((r for r in records if r.status == "done" and (r.speedup or 0) > 1), key=lambda r: -(r.speedup or 0))
    exact = [record for record in done if exactness_of(record.steps) is Exactness.EXACT]
    return list({record.number: record for record in [*done[:1], *exact[:1]]}.values())
