"""Find what bounds a named training's step, by phase and layer, in a child process, so that a hang becomes an error."""

import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.core.workload.training import Trainer
from whet.errors import MachineError, ModelError
from whet.measure.isolate import QUIET
from whet.measure.machine import describe
from whet.measure.machine.limits import load_limits
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait, undisturbed
from whet.profiling.model.chrome import FILE as TRACE
from whet.techniques.costs.layer_profile import LayerProfile, profile_training_layers
from whet.techniques.costs.memory import StepMemory, step_memory
from whet.techniques.costs.step_profile import StepProfile, profile_steps
from whet.tuner.target_profile.model import LIMIT_S, check_out, write_profile
from whet.tuner.target_profile.profiled_process import profiled, taken_quietly
from whet.tuner.training.opening import open_training
from whet.tuner.training.words import diagnosed
from whet.workloads.target_name import check_name

_FIRST_STEPS = 3  # which allocate the optimiser's state


class TrainingProfile(BaseModel, frozen=True):
    """Hold what bounds the step of a training run.

    Attributes:
        sentence: Where the time of a step goes, in words.
        layers: Forward and backward, layer by layer.
        memory: The model's parameters, gradients and optimiser's state. The peak is their sum here.
        busy: What disturbed the measurement; "" for a quiet one.
        notes: What the profile leaves out.
    """

    kind: str = "training"
    name: str
    sentence: str
    step: StepProfile
    layers: LayerProfile
    memory: StepMemory
    busy: str = ""
    notes: tuple[str, ...] = ()


def profile_training(
    target: str,
    *,
    out: str | os.PathLike[str] | None = None,
    limit_s: float = LIMIT_S,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: QuietWait | None = None,
) -> TrainingProfile:
    """Find what bounds the step of a training run. The arguments are those of `profile_target`; there is no trace.

    Raises:
        OutputError: `out` exists, or cannot be written.
        TargetError: The target cannot be loaded, or is no training run.
        MachineError: The model is on a GPU.
        ModelError: A step raised, or the child process ended early.
    """
    if out is not None:
        check_out(Path(out))
    check_name(target)
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    with tempfile.TemporaryDirectory(prefix="whet-profile-") as scratch:
        folder = Path(scratch)
        report, _ = taken_quietly(  # nothing is noted on the way, so that a report is a whole one
            patience,
            lambda: profiled(
                look,
                {"target": target},
                folder,
                target=target,
                done="profiled",
                read=lambda data, why: TrainingProfile.model_validate(data),
                time_limit_s=limit_s,
                environment=QUIET,
            ),
        )
        if out is not None:
            write_profile(report.model_dump(mode="json"), folder / TRACE, Path(out))
    return report


def look(target: str) -> dict[str, Any]:
    """Return the profile of a training run as JSON. This runs in the child process."""
    workload = open_training(target)
    if any(p.device.type != "cpu" for p in workload.model.parameters()):
        raise MachineError(
            "the layers of a training are profiled on the CPU; for a training on a GPU use whet profile --step, which "
            "shows the phases of its step"
        )
    trainer = Trainer(workload)
    try:
        for _ in range(_FIRST_STEPS):
            trainer.step()
    except RuntimeError as error:
        raise ModelError(f"a first step of the training failed: {error}") from error
    memory = step_memory(trainer.model, trainer.optimizer, 0)
    limits = load_limits(describe(), device="cpu")
    step, busy = undisturbed(lambda: profile_steps(trainer))
    layers, busy_later = undisturbed(lambda: profile_training_layers(workload, trainer, limits))
    found = TrainingProfile(
        name=workload.name,
        sentence=diagnosed(step.total_s, step.shares, share_of_limit=0.0).sentence,
        step=step,
        layers=layers,
        memory=memory,
        busy=busy or busy_later,
        notes=(*layers.notes, *limits.notes),
    )
    return found.model_dump(mode="json")
