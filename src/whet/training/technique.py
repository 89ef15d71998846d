"""Describe what a technique for training is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from whet.machine import Limits, Machine
from whet.technique import Applicability
from whet.training.parts import Parts
from whet.training.step_profile import StepProfile


class TrainingStage(StrEnum):
    """Name the stages of a training recipe, in the order in which their techniques compose."""

    STRUCTURE = "structure"  # another way to compute the same numbers
    PRECISION = "precision"  # fewer bits
    LAYOUT = "layout"  # the order in memory
    MEMORY = "memory"  # what is kept from forward to backward
    OPTIMIZER = "optimizer"  # how parameters are updated
    COMPILER = "compiler"  # generated code
    RUNTIME = "runtime"  # how the process runs


TRAINING_STAGES = tuple(TrainingStage)


class Exactness(StrEnum):
    """Say which proof a technique owes; see whet.training.gradients."""

    EXACT = "exact"  # the same numbers, rounding aside
    ROUNDED = "rounded"  # the same mathematics in fewer bits
    OTHER = "other"  # another algorithm, such as another optimiser: only the held-out loss can tell


@dataclass(frozen=True, kw_only=True)
class TrainingTechnique:
    """Describe one optimisation of a training loop. Each technique's file ends with such a record: TECHNIQUE.

    Attributes:
        name: The technique's name in recipes and tables, and the name of its file.
        stage: The stage of a recipe that it belongs to.
        order: Its place among the techniques of its stage. The lowest comes first.
        card: What it does, when it helps and hurts, its numerics and its source, for people.
        options: A frozen dataclass of its options.
        exactness: Which proof it owes.
        check: Returns whether it applies to the parts of a loop on a machine with these options.
        predict: Returns the highest speedup of a step that its profile and the machine's limits allow; 1.0 is none.
        apply: Returns the changed parts.
        space: For each option, the values that are worth trying. The default comes first.
        groups: What it claims for itself. Two techniques that claim the same group exclude each other.
        needs: Groups that it depends on. A recipe with it pays only if it contains a technique of each.
        saves_memory: Whether it is worth a trial for its memory alone.
        updates_early: Whether it updates before all gradients of a step are there, so that no gradients can be clipped
            or accumulated.
    """

    name: str
    stage: TrainingStage
    order: int
    card: str | None
    options: type[Any]
    exactness: Exactness
    check: Callable[[Parts, Machine, Any], Applicability]
    predict: Callable[[StepProfile, Limits, Any], float]
    apply: Callable[[Parts, Any], Parts]
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    saves_memory: bool = False
    updates_early: bool = False
    restores_quality: bool = False
    reads_kept: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Return the position in the order of recipes: the stage's index, then the order within the stage."""
        return TRAINING_STAGES.index(self.stage), self.order
