"""Hold what the examination of a training run found out, and what each trial needs."""

from pathlib import Path

from pydantic import BaseModel

from whet.measure.machine import Limits
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.step_profile import StepProfile
from whet.tuner.facts import Facts
from whet.tuner.result import Diagnosed

REFERENCE, ORIGINAL = "reference.safetensors", "original.safetensors"  # gradients: in float64, and the original's
MOVED = "moved.safetensors"  # how far rounding moves them, as far as the techniques that apply round


class TrainingFacts(Facts, frozen=True):
    """Hold what was found out about a training run.

    Attributes:
        loop: A digest of the batches, the optimiser's settings, and how gradients are accumulated and clipped.
        batches: A digest of each of the first batches.
        next_batches: The same of a second pass.
        optimizer: The optimiser's class.
    """

    higher_is_better: bool = False
    diagnosis: Diagnosed
    limits: Limits
    loop: str = ""
    profile: StepProfile
    memory: StepMemory
    batches: tuple[str, ...]
    next_batches: tuple[str, ...] = ()
    optimizer: str = ""


class KnownTraining(BaseModel, frozen=True):
    """Tell a process where the target is, and what was found out about the original.

    Attributes:
        target: The target's name or address.
        directory: Where the files of the examination lie.
        batches: A digest of each of the first batches.
        next_batches: The same of a second pass.
    """

    target: str
    directory: Path
    batches: tuple[str, ...] = ()
    next_batches: tuple[str, ...] = ()
