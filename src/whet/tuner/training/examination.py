"""Examine a training run once, in a child process: does it train reproducibly, what bounds it, what applies."""

import hashlib
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer, num_samples_of
from whet.errors import ModelError, TargetError
from whet.measure.machine import Limits, Machine, describe
from whet.measure.machine.limits import load_limits
from whet.measure.memory import TakenMemory, begin_peak
from whet.measure.quiet import undisturbed
from whet.techniques.applicability import options_that_apply
from whet.techniques.costs.layer_profile import profile_training_layers
from whet.techniques.costs.memory import StepMemory, step_memory
from whet.techniques.costs.saved_activations import SavedActivations, saved_activations
from whet.techniques.costs.step_profile import StepProfile, profile_steps
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import NOT_PLAIN, updates_plainly
from whet.techniques.proof import gradients
from whet.techniques.proof.loss_proof import TRAINING_LOSS
from whet.techniques.proof.not_finite import batches_fault, weights_fault
from whet.techniques.proof.sensitivity import MOVES, SUMS, sensitivity
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness, TrainingTechnique
from whet.tuner.known_target import digest_of
from whet.tuner.result import LayerRow, RefusedTechnique
from whet.tuner.space import ApplicableTechnique, Variant
from whet.tuner.training.facts import MOVED, ORIGINAL, REFERENCE, TrainingFacts
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches, open_training
from whet.tuner.training.shared_training import check_shareable
from whet.tuner.training.soundness import (
    BUILDING,
    COMPARING,
    COMPUTING,
    READING,
    STEPPING,
    check_reproducible,
    diverged,
    first_losses,
    note_stage,
    sums_of,
)
from whet.tuner.training.words import diagnosed

_LAYERS_STEPS, _LAYERS_SHARE = 6, 0.01  # about how many steps the layers' profile takes, and its share of the budget


class TrainingRequest(BaseModel, frozen=True):
    """Tell a process which training run to examine.

    Attributes:
        directory: Where the gradients are written.
        budget_s: Seconds for everything. The layers are profiled where that takes little of it.
        num_processes: How many processes are to share it later.
    """

    target: str
    directory: Path
    exclude: tuple[str, ...] = ()
    budget_s: float = 600.0
    num_processes: int = 1


def examine_training(request: TrainingRequest) -> TrainingFacts:
    """Check a training run and return its facts.

    Raises:
        WhetError: The run cannot be tuned; the message says why.
    """
    began = time.perf_counter()
    taken = TakenMemory()
    workload, open_s = _opened(request)
    machine = describe()
    batches = _read(request, workload)
    sums = sums_of(workload.model)
    next_batches = digests(first_batches(workload, NUM_DIGESTS, later=1))
    model = digest_of(workload.model.named_parameters())
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
    write_gradients(workload, request.directory, may_round=_may_round(parts, machine, request.exclude))
    begin_peak()
    trainer = Trainer(workload)
    note_stage(request.directory, STEPPING)
    losses = first_losses(trainer, batches)
    memory = step_memory(trainer.model, trainer.optimizer, taken.peak_bytes())
    seen = digests(batches)
    check_reproducible(request.target, sums, seen, losses)
    limits, limits_s = _limits(machine, parts)
    profile, _ = undisturbed(lambda: profile_steps(trainer))
    layers = _layers(workload, trainer, profile, limits, request.budget_s)
    memory = memory.model_copy(update={"saved": _saved(workload, trainer, batches[0])})
    applicable, refused = applicable_techniques(
        parts, machine, limits, profile, memory, request.exclude, updates_plainly=updates_plainly(workload)
    )
    tokens, loop = _tokens(batches[0]), _loop_digest(workload, parts, seen)
    return TrainingFacts(
        name=workload.name,
        machine=machine,
        fingerprint=machine.fingerprint,
        limits=limits,
        model=model,
        loop=loop,
        applicable=tuple(applicable),
        refused=tuple(refused),
        profile=profile,
        diagnosis=diagnosed(profile.total_s, profile.shares, share_of_limit=0.0).model_copy(update={"layers": layers}),
        memory=memory,
        losses=losses,
        batches=seen,
        next_batches=next_batches,
        examined_s=time.perf_counter() - began - limits_s,
        limits_s=limits_s,
        open_s=open_s,
        num_samples=float(tokens or trainer.num_samples) * workload.num_accumulated,
        unit="tokens" if tokens else "samples",
        optimizer=type(parts.optimizer).__name__,
        weights=f"{model} {loop}",
        exclude=request.exclude,
        peak_bytes=memory.peak_bytes,
        quality_name=TRAINING_LOSS if workload.evaluation is None else workload.evaluation.name,
        higher_is_better=workload.evaluation is not None and workload.evaluation.higher_is_better,
    )


def _opened(request: TrainingRequest) -> tuple[TrainingWorkload, float]:
    """Return the training, and the seconds in which it was opened."""
    began = time.perf_counter()
    note_stage(request.directory, BUILDING)
    workload = open_training(request.target, option="--nproc" if request.num_processes > 1 else "")
    return workload, time.perf_counter() - began


def _read(request: TrainingRequest, workload: TrainingWorkload) -> list[Any]:
    """Read the first batches, and check by them that so many processes can share the training."""
    note_stage(request.directory, READING)
    batches = first_batches(workload, NUM_DIGESTS)
    if request.num_processes > 1:
        check_shareable(workload, batches, request.num_processes)
    return batches


def _limits(machine: Machine, parts: Parts) -> tuple[Limits, float]:
    began = time.perf_counter()
    limits = load_limits(machine, device="cuda" if parts.device_type == "cuda" else "cpu")
    return limits, time.perf_counter() - began


def _loop_digest(workload: TrainingWorkload, parts: Parts, batches: tuple[str, ...]) -> str:
    """Return a digest of what a search belongs to: another loop cannot go on with it."""
    groups = [
        {name: value for name, value in group.items() if name != "params"} for group in parts.optimizer.param_groups
    ]
    found = repr((batches, type(parts.optimizer).__name__, groups, workload.num_accumulated, workload.clip_norm))
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def _may_round(parts: Parts, machine: Machine, exclude: Collection[str]) -> bool:
    """Return whether a technique may be tried whose gradients are judged by direction and length."""
    return any(
        technique.exactness is not Exactness.EXACT and options_that_apply(technique, parts, machine)[0] is not None
        for name, technique in TRAINING_TABLE.items()
        if name not in exclude
    )


def write_gradients(workload: TrainingWorkload, directory: Path, *, may_round: bool = True) -> None:
    """Write the gradients of the first batches: the original's, those in float64, and how far rounding moves them.

    Args:
        may_round: Whether to write how far rounding in bfloat16 moves them too.

    Raises:
        WhetError: They are not finite, or depend on numbers that forward draws.
    """
    batches = first_batches(workload, gradients.NUM_BATCHES)
    model = workload.model.train()
    note_stage(directory, COMPUTING)
    try:
        original = gradients.gradients_of(model, workload.loss, batches, seed=workload.seed)
        again = gradients.gradients_of(model, workload.loss, batches[:1], seed=workload.seed + 1)
    except RuntimeError as error:
        raise ModelError(f"a first step of the training failed: {error}") from error
    for name, gradient in original.items():
        if not torch.isfinite(gradient).all():
            number, _, parameter = name.removeprefix("norm.").partition(".")
            what = f"the gradient of {parameter} is not finite in batch {int(number) + 1}"
            raise diverged(what, weights_fault(model) or batches_fault(batches), "look at the loss")
        other = again.get(name, gradient)
        if not torch.allclose(gradient, other, rtol=1e-3, atol=1e-9 + 1e-3 * float(gradient.abs().max())):
            raise TargetError(
                "the gradients depend on numbers that forward draws outside of dropout layers, so that no variant can "
                f"be held against float64 ({name.partition('.')[2]}); give a workload without them, or nn.Dropout"
            )
    gradients.write(original, directory / ORIGINAL)
    note_stage(directory, COMPARING)
    reference = gradients.reference_gradients(model, workload.loss, batches, seed=workload.seed)
    gradients.write(reference, directory / REFERENCE)
    sizes = tuple(MOVES) if may_round else (SUMS,)
    moved = sensitivity(model, workload.loss, batches, reference, seed=workload.seed, sizes=sizes)
    gradients.write(moved, directory / MOVED)


def applicable_techniques(
    parts: Parts,
    machine: Machine,
    limits: Limits,
    profile: StepProfile,
    memory: StepMemory,
    exclude: tuple[str, ...] = (),
    *,
    updates_plainly: bool = True,
) -> tuple[list[ApplicableTechnique], list[RefusedTechnique]]:
    """Ask every technique for training whether it applies, and what time and memory it could save at most.

    Args:
        updates_plainly: Whether the loop neither clips nor accumulates gradients.
    """
    applicable: list[ApplicableTechnique] = []
    refused: list[RefusedTechnique] = []
    for name, technique in TRAINING_TABLE.items():
        options, detail, reason = options_that_apply(technique, parts, machine)
        if technique.updates_early and not updates_plainly:
            refused.append(RefusedTechnique(technique=name, reason=NOT_PLAIN))
        elif name in exclude:
            refused.append(RefusedTechnique(technique=name, reason="left out by --exclude"))
        elif options is None:
            refused.append(RefusedTechnique(technique=name, reason=reason))
        elif technique.check_masks is not None and (why := technique.check_masks(profile.within_documents)):
            refused.append(RefusedTechnique(technique=name, reason=why))
        else:
            make = partial(_variant, technique, profile=profile, memory=memory, limits=limits)
            applicable.append(ApplicableTechnique.of(technique, options, detail, make))
    return applicable, refused


def _variant(
    technique: TrainingTechnique, step: Step, profile: StepProfile, memory: StepMemory, limits: Limits
) -> Variant:
    options = technique.options(**step.options)
    bound, shrink = technique.predict(profile, limits, options), technique.shrink(memory, options)
    return Variant(step=step, bound=bound, shrink=shrink)


def _layers(
    workload: TrainingWorkload, trainer: Trainer, profile: StepProfile, limits: Limits, budget_s: float
) -> list[LayerRow]:
    """Return the layers of forward and backward for the report, where that costs little of the budget, on a CPU."""
    is_on_cpu = all(p.device.type == "cpu" for p in trainer.model.parameters())
    if _LAYERS_STEPS * profile.total_s > _LAYERS_SHARE * budget_s or not is_on_cpu:
        return []
    try:
        found = profile_training_layers(workload, trainer, limits, repeats=1).layers
    except Exception:  # noqa: BLE001 - a report without layers is better than no search
        return []
    return [
        LayerRow(
            name=layer.name,
            kind=layer.kind,
            calls=layer.calls,
            time_ms=layer.time_s * 1e3,
            flops=layer.flops + layer.backward_flops,
            bytes=layer.num_bytes + layer.backward_bytes,
            bound=layer.bound,
            share_of_limit=layer.share_of_limit or 0.0,
            backward_ms=layer.backward_s * 1e3,
        )
        for layer in found
    ]


def _saved(workload: TrainingWorkload, trainer: Trainer, batch: object) -> SavedActivations | None:
    """Return what a forward saves for backward; None where the model cannot be watched as it runs."""
    try:
        return saved_activations(trainer.model, workload.loss, batch)
    except Exception:  # noqa: BLE001 - a prediction by a rule of thumb is better than no search
        return None


def _tokens(batch: object) -> int:
    """Return how many token ids the first tensor of a batch holds; 0 where it holds something else."""
    tensors = [batch] if isinstance(batch, Tensor) else [x for x in _leaves(batch) if isinstance(x, Tensor)]
    first = next(iter(tensors), None)
    is_text = first is not None and first.dim() == 2 and not first.is_floating_point()
    return first.numel() if is_text and first is not None and num_samples_of(batch) else 0


def _leaves(batch: object) -> list[object]:
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, tuple | list) else []
