"""Hold what the examination of a training run found out, and what each trial needs."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from whet.machine import Limits, Machine
from whet.training.memory import StepMemory
from whet.training.step_profile import StepProfile
from whet.tuner.result import Diagnosed, RefusedTechnique
from whet.tuner.space import ApplicableTechnique

REFERENCE, ORIGINAL = "reference.safetensors", "original.safetensors"  # gradients: in float64, and the original's
MOVED = "moved.safetensors"  # how far rounding moves them, as far as the techniques that apply round


class TrainingFacts(BaseModel):
    """Hold everything that was found out about a training run.

    Attributes:
        name: The workload's name.
        machine: The machine.
        fingerprint: The machine's fingerprint.
        limits: The machine's limits.
        model: A digest of the parameters that the training begins with.
        loop: A digest of the batches, the optimiser's settings, and how gradients are accumulated and clipped.
        applicable: The techniques that apply.
        refused: The techniques that do not, with reasons.
        profile: Where the time of a step goes.
        diagnosis: The same in words.
        memory: What the memory of a step is made of.
        losses: The losses of the first steps.
        batches: A digest of each of the first batches.
        next_batches: The same of a second pass.
        examined_s: Seconds of the examination.
        limits_s: Seconds to measure the machine's limits, on top of that.
        start_s: Seconds to start a process that imports what it needs; a fork of it starts at once.
        open_s: Seconds to build the model and its batches.
        num_samples: Samples of an optimiser step.
        unit: What the samples are: "tokens" or "samples".
        optimizer: The optimiser's class.
        evaluation: The name of the held-out score; "" where there is none.
        higher_is_better: Whether a higher score is a better one.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    machine: Machine
    fingerprint: str
    limits: Limits
    model: str = ""
    loop: str = ""
    applicable: tuple[ApplicableTechnique, ...]
    refused: tuple[RefusedTechnique, ...]
    profile: StepProfile
    diagnosis: Diagnosed
    memory: StepMemory
    losses: tuple[float, ...]
    batches: tuple[str, ...]
    next_batches: tuple[str, ...] = ()
    examined_s: float
    limits_s: float = 0.0
    start_s: float = 0.0
    open_s: float
    num_samples: float
    unit: str = "samples"
    optimizer: str = ""
    evaluation: str = ""
    higher_is_better: bool = False


class KnownTraining(BaseModel):
    """Tell a process where the target is, and what was found out about the original.

    Attributes:
        target: The target's name or address.
        directory: Where the files of the examination lie.
        batches: A digest of each of the first batches.
        next_batches: The same of a second pass.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    directory: Path
    batches: tuple[str, ...] = ()
    next_batches: tuple[str, ...] = ()
