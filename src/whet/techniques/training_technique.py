"""Describe what a technique for training is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Refuses, Use
from whet.techniques.technique import AnyTechnique, Applicability

COMPILER = "compiler"  # the group of the technique that compiles


class TrainingStage(StrEnum):
    """Name the stages of a training recipe, in the order in which their techniques compose."""

    STRUCTURE = "structure"  # another way to compute the same numbers
    PRECISION = "precision"  # fewer bits
    LAYOUT = "layout"  # the order in memory
    MEMORY = "memory"  # what is kept from forward to backward
    OPTIMIZER = "optimizer"  # how parameters are updated
    COMPILER = "compiler"  # generated code
    RUNTIME = "runtime"  # how the process runs


class Exactness(StrEnum):
    """Say which proof a technique owes; see whet.techniques.proof.gradients."""

    EXACT = "exact"  # the same numbers, rounding aside
    ROUNDED = "rounded"  # the same mathematics in fewer bits
    OTHER = "other"  # another algorithm, such as another optimiser: only the held-out loss can tell


@dataclass(frozen=True, kw_only=True)
class TrainingTechnique(AnyTechnique):
    """Describe one optimisation of a training loop. Each technique's file ends with such a record: TECHNIQUE.

    Attributes:
        predict: Returns the highest speedup of a step that its profile and the machine's limits allow; 1.0 is none, and
            the default.
        check_masks: Returns why the masks of attention in a step show that it would change nothing, from the share of
            the products that is left within documents (see StepProfile); "" where it may.
        exactness_of: Returns which proof it owes with these options, where that depends on them.
        predict_memory: Returns the least bytes that a step takes with it, from what a step takes as it is; None where
            it saves none.
        refuses: What a loop may not do beside this technique, with the reason. It bears all other uses.
        keeps_dropout: Whether dropout drops what it dropped before, which is then proved.
        changes_batches: Whether it changes nothing but how batches are read.
        environment: Returns the environment variables that a process must start with, by the options. What it returns
            for LD_PRELOAD is loaded before what the variable names already. None where any process will do.
    """

    stage: TrainingStage
    exactness: Exactness
    check: Callable[[Parts, Machine, Any], Applicability]
    predict: Callable[[StepProfile, Limits, Any], float] = lambda profile, limits, options: 1.0
    apply: Callable[[Parts, Any], Parts]
    check_masks: Callable[[float], str] | None = None
    exactness_of: Callable[[Any], Exactness] | None = None
    predict_memory: Callable[[StepMemory, Any], float] | None = None
    refuses: Refuses = field(default_factory=dict)
    keeps_dropout: bool = False
    changes_batches: bool = False
    environment: Callable[[Any], Mapping[str, str]] | None = None

    @property
    def updates_early(self) -> bool:
        """Return whether it updates before all gradients of a step are there, so that none can be clipped or added."""
        return Use.CLIPPING in self.refuses and Use.ACCUMULATION in self.refuses

    def shrink(self, memory: StepMemory, options: Any) -> float:
        """Return how many times smaller it may make the memory of a step; 1.0 where it saves none or none is known."""
        if self.predict_memory is None or not memory.peak_bytes:
            return 1.0
        return max(1.0, memory.peak_bytes / max(self.predict_memory(memory, options), 1.0))

    def promise(self, options: Any) -> Exactness:
        """Return which proof the technique owes with these options."""
        return self.exactness if self.exactness_of is None else self.exactness_of(options)
