"""Define what can be changed of how several processes share a training, as techniques beside those of its loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from whet.core.recipe import Step
from whet.parallel.plan import ParallelPlan
from whet.techniques.costs.memory import StepMemory
from whet.techniques.technique import PRECISION, AnyTechnique, Applies
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness, TrainingTechnique
from whet.tuner.kind_options import PLAN_TECHNIQUES
from whet.tuner.space import ApplicableTechnique, Variant, steps_of
from whet.tuner.training.shared_step import SharedStep

_STATE, _BUCKETS, _WIRE, _GRAPH = "state", "buckets", "wire", "graph"
_ENGINE = frozenset({_STATE, _BUCKETS, _WIRE, _GRAPH})  # what DDP alone has a choice of


class PlanStage(StrEnum):
    """Name the stage of what is decided before a loop's techniques are applied."""

    PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Sum gradients in pieces of another size.

    Attributes:
        mb: The size of a piece in MiB; DDP's own default is 25.
    """

    mb: float = 100.0


@dataclass(frozen=True, kw_only=True)
class Casts:
    """Send gradients in 16 bits.

    Attributes:
        precision: "bf16" or "fp16".
    """

    precision: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Send matrices of a low rank in the place of gradients.

    Attributes:
        rank: Of these matrices.
    """

    rank: int = 4


@dataclass(frozen=True, kw_only=True)
class PlanTechnique(AnyTechnique):
    """Describe one choice of a plan.

    Attributes:
        exactness: Which proof it owes.
        keys: Returns the keys of [parallel] that it sets, by the options.
        kept: Returns the least bytes of a step that are left with it, of so many processes.
        is_alone: Whether one process makes all steps.
        exchanges_less: Whether it may shorten the sums of gradients over processes.
        divides_update: Whether each process updates its part of the parameters alone.
    """

    exactness: Exactness = Exactness.EXACT
    keys: Callable[[Any], dict[str, Any]] = lambda options: {}
    kept: Callable[[StepMemory, int], float] | None = None
    is_alone: bool = False
    exchanges_less: bool = False
    divides_update: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Return the position in a recipe: before what is applied to the loop."""
        return -1, self.order

    def promise(self, options: Any) -> Exactness:
        return self.exactness

    def variant(self, step: Step, memory: StepMemory, shared: SharedStep, number: int) -> Variant:
        """Return a step with what it may save at the most of a training on so many processes."""
        shrink = 1.0 if self.kept is None else memory.peak_bytes / max(self.kept(memory, number), 1.0)
        less, divides = self.exchanges_less, self.divides_update
        bound = shared.bound(number, exchanges_less=less, divides_update=divides)
        # No measurement tells before a trial how long the threads of one process wait for each other.
        return Variant(step=step, bound=float(number) if self.is_alone else bound, shrink=max(1.0, shrink))


def _technique(name: str, order: int, card: str, groups: frozenset[str], **more: Any) -> PlanTechnique:
    return PlanTechnique(
        name=name,
        stage=PlanStage.PLAN,
        order=order,
        card=card,
        check=lambda parts, machine, options: Applies(card),
        groups=groups,
        **more,
    )


PLAN_TABLE: Mapping[str, PlanTechnique] = {
    entry.name: entry
    for entry in (
        _technique("one_process", 1, "all steps in one process, with all cores", _ENGINE, is_alone=True),
        _technique(
            "zero_1",
            2,
            "each process holds its part of the optimiser's state",
            frozenset({_STATE}),
            divides_update=True,
            keys=lambda options: {"zero_stage": 1},
            kept=lambda memory, number: memory.left(optimizer=1 / number),
        ),
        _technique(
            "zero_2",
            3,
            "each process holds its part of the optimiser's state and of the gradients",
            _ENGINE,
            exchanges_less=True,
            divides_update=True,
            keys=lambda options: {"zero_stage": 2},
            kept=lambda memory, number: memory.left(optimizer=1 / number, gradients=1 / number),
        ),
        _technique(
            "zero_3",
            4,
            "each process holds its part of the optimiser's state, the gradients and the parameters",
            _ENGINE,
            exchanges_less=True,
            divides_update=True,
            keys=lambda options: {"zero_stage": 3},
            kept=lambda memory, number: memory.left(optimizer=1 / number, gradients=1 / number, parameters=1 / number),
        ),
        _technique(
            "bucket_size",
            5,
            "gradients are summed in pieces of another size",
            frozenset({_BUCKETS}),
            options=Bucket,
            space={"mb": (100.0, 5.0, 1.0)},
            exchanges_less=True,
            keys=lambda options: {"bucket_cap_mb": options.mb},
        ),
        _technique(
            "static_graph",
            6,
            "all steps use the same parameters in the same order",
            frozenset({_GRAPH}),
            exchanges_less=True,
            keys=lambda options: {"static_graph": True},
        ),
        _technique(
            "gradients_16_bit",
            7,
            "gradients are sent in 16 bits",
            frozenset({_WIRE, _STATE}),
            options=Casts,
            space={PRECISION: ("bf16", "fp16")},
            exactness=Exactness.ROUNDED,
            exchanges_less=True,
            keys=lambda options: {"compression": options.precision},
        ),
        _technique(
            "powersgd",
            8,
            "matrices of a low rank are sent in the place of gradients",
            frozenset({_WIRE, _STATE}),
            options=Rank,
            space={"rank": (4, 16, 1)},
            exactness=Exactness.OTHER,
            exchanges_less=True,
            keys=lambda options: {
                "compression": "powersgd",
                "powersgd_rank": options.rank,
                "powersgd_start_step": 2,  # the earliest, so that what is proved and timed is compressed
            },
        ),
    )
}
assert tuple(PLAN_TABLE) == PLAN_TECHNIQUES

TRAINED_TABLE: Mapping[str, PlanTechnique | TrainingTechnique] = {**PLAN_TABLE, **TRAINING_TABLE}
"""Every technique that a recipe of a training may name while it is tuned."""


def plan_keys(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the keys of [parallel] for a recipe: DDP with its defaults, and what the recipe changes of it."""
    found: dict[str, Any] = {"zero_stage": 0}
    for step in steps:
        if step.technique in PLAN_TABLE:
            technique = PLAN_TABLE[step.technique]
            found |= technique.keys(technique.options_of(step))
    return found


def plan_of(steps: Sequence[Step]) -> ParallelPlan:
    """Return the plan of a recipe's training; see plan_keys."""
    return ParallelPlan(**plan_keys(steps))


def is_alone(steps: Sequence[Step]) -> bool:
    """Return whether a recipe has one process make all steps."""
    return any(step.technique in PLAN_TABLE and PLAN_TABLE[step.technique].is_alone for step in steps)


def of_loop(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps of a recipe that change the loop of each process."""
    return tuple(step for step in steps if step.technique not in PLAN_TABLE)


def applicable_plans(
    memory: StepMemory, shared: SharedStep, number: int, exclude: Sequence[str]
) -> list[ApplicableTechnique]:
    """Return what can be tried of the plan of a training on so many processes, with what it may save at the most."""
    return [
        ApplicableTechnique(
            technique=name,
            detail=technique.card or "",
            groups=tuple(sorted(technique.groups)),
            options={option: tuple(values) for option, values in technique.space.items()},
            variants=tuple(technique.variant(step, memory, shared, number) for step in steps_of(name, technique.space)),
        )
        for name, technique in PLAN_TABLE.items()
        if name not in exclude
    ]
