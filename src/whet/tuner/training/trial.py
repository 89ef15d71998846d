"""Build, prove and time a recipe for training, in the child processes of a search.

The process first holds gradients and updates against float64, then makes the steps that are timed.
"""

import math
import time

from pydantic import BaseModel

from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload, measure_quality
from whet.core.workload.training import Trainer
from whet.measure.machine import describe
from whet.measure.machine.power import EnergyMeter
from whet.measure.memory import TakenMemory, begin_peak, cuda_peak_bytes
from whet.parallel.division import inner_optimizer
from whet.techniques.costs.compile_time import compile_s
from whet.techniques.costs.memory import StepMemory, step_memory
from whet.techniques.mechanisms.evaluating import evaluating
from whet.techniques.proof.divergence import FAR, divergence
from whet.tuner.records import TrainingEvidence, TrialOutcome
from whet.tuner.training.facts import KnownTraining
from whet.tuner.training.proof import TrialProof
from whet.tuner.training.shared_step import SharedStep
from whet.tuner.training.shared_training import SharedTraining, opened

_MEMORY_STEPS = 2


class TrainingTrial(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Tell the process of a trial what to try.

    Attributes:
        steps: The recipe; empty for the original.
        most_loss: The size of a loss beyond which the run diverges.
        num_known: The steps of the original, whose losses `most_loss` comes from.
    """

    known: KnownTraining
    steps: tuple[Step, ...] = ()
    timing_s: float = 2.0
    most_loss: float = math.inf
    num_known: float = math.inf


class TrainingMeasured(BaseModel, ser_json_inf_nan="constants"):
    """Hold what the process of a trial found.

    Attributes:
        outcome: Whether the training is the same, with the evidence.
        run: Its times; None where it was refused or rejected.
        largest_loss: The largest size of a loss in any of its steps.
        shared: Where the time of a step goes that several processes make together; None with a recipe.
    """

    outcome: TrialOutcome
    run: Run | None = None
    largest_loss: float = math.inf
    num_steps: int = 0
    shared: SharedStep | None = None

    @property
    def most_loss(self) -> float:
        """Return the size of a loss that tells, in another variant's run, that it diverges."""
        return FAR * self.largest_loss


def run_training_trial(request: TrainingTrial) -> TrainingMeasured:
    """Prove and time a recipe on a training: in this process, or in all that were started together."""
    taken = TakenMemory()
    with opened(request.known.target, request.steps) as training:
        return _tried(request, training, taken)


def _tried(request: TrainingTrial, training: SharedTraining, taken: TakenMemory) -> TrainingMeasured:
    if why := training.refusal(describe()):
        return TrainingMeasured(outcome=TrialOutcome(status="refused", reason=why))
    proof = TrialProof(training.workload, request.steps, request.known)
    began = time.perf_counter()
    prepared = training.prepared()
    applied_s = time.perf_counter() - began
    why, evidence = proof.judge(prepared.trainer)
    if why:
        return _rejected(why, evidence, prepared.notes)
    first_s = time.perf_counter() - began
    memory = _memory(training, prepared.trainer, taken)
    run, joules = _timed(training, prepared.trainer, request.timing_s)
    losses = [float(loss) for loss in prepared.trainer.losses]
    if why := divergence(losses, request.most_loss, num_known=request.num_known):
        return TrainingMeasured(
            outcome=TrialOutcome(status="failed", reason=why, notes=prepared.notes), num_steps=len(losses)
        )
    gradients = evidence.gradients
    assert gradients is not None
    evidence = evidence.model_copy(
        update={"memory": memory, "set_up_s": applied_s + compile_s(), "joules_per_step": joules}
    )
    outcome = TrialOutcome(
        status="done",
        notes=prepared.notes,
        build_s=first_s,
        quality=gradients.cosine,
        drop=0.0,
        busy=run.busy,
        training=evidence,
    )
    run = run.model_copy(
        update={"peak_bytes": memory.peak_bytes}
    )  # above what the process held before, as in the finals
    shared = None if request.steps else training.profiled(prepared.trainer)
    largest = max(map(abs, losses))
    return TrainingMeasured(outcome=outcome, run=run, largest_loss=largest, num_steps=len(losses), shared=shared)


def _timed(training: SharedTraining, trainer: Trainer, timing_s: float) -> tuple[Run, float | None]:
    """Time the next steps, and return the joules of each of them, None without a counter.

    The run's calls are numbered from the training's first step on, so that they compare with those of any other run.
    """
    meter, num_before = EnergyMeter(), len(trainer.losses)
    if meter.is_available:
        meter.start()
    run = training.timed(trainer, timing_s)
    total_j = meter.stop().total_j
    run = run.model_copy(update={"calls_s": {number + num_before: s for number, s in run.calls_s.items()}})
    return run, None if total_j is None else total_j / max(1, len(trainer.losses) - num_before)


def _memory(training: SharedTraining, trainer: Trainer, taken: TakenMemory) -> StepMemory:
    """Return the memory of a step once the first ones have been made, of the process that takes most."""
    begin_peak()
    for _ in range(_MEMORY_STEPS):
        trainer.step()
    on_gpu = cuda_peak_bytes()
    peak_bytes = training.most(taken.peak_bytes() if on_gpu is None else on_gpu)
    return step_memory(trainer.model, inner_optimizer(trainer.optimizer), peak_bytes)


def _rejected(why: str, evidence: TrainingEvidence, notes: tuple[str, ...]) -> TrainingMeasured:
    outcome = TrialOutcome(status="rejected", reason=why, rejected_for="quality", training=evidence, notes=notes)
    return TrainingMeasured(outcome=outcome)


class LossRequest(BaseModel, frozen=True):
    """Tell a process to train for some steps, to see where the held-out loss ends.

    Attributes:
        seed: The seed of the order of data and of what is drawn in training; None for the target's own.
        num_steps: Optimiser steps.
        batch_factor: How many of the target's batches become one.
    """

    target: str
    steps: tuple[Step, ...] = ()
    seed: int | None
    num_steps: int
    batch_factor: int = 1


class LossRun(BaseModel, ser_json_inf_nan="constants"):
    """Hold the scores of one training run.

    Attributes:
        held_out: The held-out score at the end; without one, the mean loss of the last steps.
        middle: The same in the middle of the run.
        begin: The same before the first step, or in the first one.
        failure: At which step the loss was no number any more, or how the process failed; "" where neither happened.
    """

    held_out: float
    middle: float
    begin: float
    failure: str = ""

    @classmethod
    def failed(cls, why: str) -> "LossRun":
        return cls(held_out=math.nan, middle=math.nan, begin=math.nan, failure=why)


def train_for_loss(request: LossRequest) -> LossRun:
    """Train from a seed for some steps, and score the model in the middle and at the end."""
    seed, factor = request.seed, request.batch_factor
    with opened(request.target, request.steps, seed=seed, batch_factor=factor) as training:
        return _scored(request, training)


def _scored(request: LossRequest, training: SharedTraining) -> LossRun:
    workload, trainer = training.workload, training.prepared().trainer
    begin = None if workload.evaluation is None else _score(workload, trainer)
    half = request.num_steps // 2
    for _ in range(half):
        trainer.step()
    middle = _score(workload, trainer)
    for _ in range(request.num_steps - half):
        trainer.step()
    return LossRun(
        held_out=_score(workload, trainer),
        middle=middle,
        begin=float(trainer.losses[0]) if begin is None else begin,
        failure=divergence([float(loss) for loss in trainer.losses]),
    )


def _score(workload: TrainingWorkload, trainer: Trainer) -> float:
    """Return the held-out score of the model as it is, or the mean loss of the last quarter of the steps."""
    if workload.evaluation is None:
        last = trainer.losses[-max(1, len(trainer.losses) // 4) :]
        return sum(float(loss) for loss in last) / max(1, len(last))
    with evaluating(trainer.model):
        return measure_quality(workload.evaluation, trainer.model)
