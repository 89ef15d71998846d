"""Apply a recipe to a script's loop, or say why that cannot be done."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from whet.core.recipe import Step
from whet.errors import RecipeError
from whet.measure.machine import Machine
from whet.profiling.step.patching import Patches
from whet.scripts.injection.loop_finder import FoundLoop
from whet.techniques.applied import applied, unfit
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import PRECISION, named
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training.accumulation import ACCUMULATION
from whet.techniques.training_technique import COMPILER, Exactness, TrainingStage, TrainingTechnique

_UPDATES_EARLY = "it updates during backward, where a script may accumulate or clip gradients later"
_SPLITS = "the script's loop has to go over the parts of a batch itself; use whet.micro_batches in it"
_REPEATS = "LBFGS computes the loss several times in a step, from its closure"
_OF_FORWARD = (
    TrainingStage.STRUCTURE,
    TrainingStage.PRECISION,
    TrainingStage.LAYOUT,
    TrainingStage.MEMORY,
    TrainingStage.COMPILER,
)
_OTHER = "it is another optimiser, and a script's own training loss cannot show that it trains as well"


def applicable(found: FoundLoop, machine: Machine) -> tuple[list[Step], dict[str, str]]:
    """Return the steps that can be applied to a script's loop, one for each choice of options; and why others cannot.

    The reasons are by technique. One that needs a process that is started otherwise can be applied too, since whet
    starts the script itself.
    """
    steps, reasons = list[Step](), dict[str, str]()
    for technique in TRAINING_TABLE.values():
        for step in _choices(technique):
            if reason := why_not(found, step, machine, is_started=False):
                reasons.setdefault(technique.name, reason)
            else:
                steps.append(step)
    used = {step.technique for step in steps}
    return steps, {name: reason for name, reason in reasons.items() if name not in used}


def _choices(technique: TrainingTechnique) -> Iterator[Step]:
    """Return a technique with each choice of its options; of how data are read, with each choice of the first one."""
    space = [[(name, value) for value in values] for name, values in technique.space.items()]
    if technique.changes_batches:
        space = [space[0], *(values[:1] for values in space[1:])]
    return (Step(technique=technique.name, options=dict(choice)) for choice in itertools.product(*space))


def why_not(found: FoundLoop, step: Step, machine: Machine, *, is_started: bool = True) -> str:
    """Return why a technique cannot be applied to a script's loop; "" where it can.

    `is_started` says whether this process was started for the technique. Otherwise another one would be.

    Raises:
        RecipeError: There is no such technique, or no such option.
    """
    technique = named(step, TRAINING_TABLE)
    if reason := _why_never(step):
        return reason
    if technique.stage is TrainingStage.OPTIMIZER and isinstance(found.parts.optimizer, torch.optim.LBFGS):
        return _REPEATS
    if not found.is_called and technique.stage in _OF_FORWARD:
        return f"the script calls parts of {type(found.parts.model).__name__} one by one, and never the whole"
    if COMPILER in technique.groups and found.is_compiled:
        return "the script compiles its model already"
    if PRECISION in technique.groups and found.is_autocast:
        return "the script computes in autocast already"
    verdicts = [verdict for _, verdict in unfit(found.parts, [step], TRAINING_TABLE, machine)]
    return next((verdict.reason for verdict in verdicts if is_started or not verdict.at_start), "")


def apply(found: FoundLoop, steps: Sequence[Step], machine: Machine) -> Parts:
    """Apply a recipe to a loop, and return its parts.

    Raises:
        RecipeError: A technique does not apply.
    """
    for step in steps:
        if reason := why_not(found, step, machine):
            raise RecipeError(f"{step.technique} cannot be applied here: {reason}; leave it out of the recipe")
    of_data = [step for step in steps if named(step, TRAINING_TABLE).changes_batches]
    parts = applied(found.parts, [step for step in steps if step not in of_data], TRAINING_TABLE)
    if of_data:
        found.passes.replace(lambda loader: applied(replace(parts, batches=loader), of_data, TRAINING_TABLE).batches)
    else:
        found.passes.end()
    return parts


def _why_never(step: Step) -> str:
    """Return why a technique cannot be used from outside of any loop; "" where it can."""
    technique = named(step, TRAINING_TABLE)
    if technique.promise(technique.options_of(step)) is Exactness.OTHER:
        return _OTHER
    if technique.name == ACCUMULATION:
        return _SPLITS
    return _UPDATES_EARLY if technique.updates_early else ""


def shift_seeds(patches: Patches, shift: int) -> None:
    """Add a number to every seed that the script sets from now on, so that it trains another run."""

    def shifted(seed: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(seed)
        def call(value: Any = None, *args: Any, **kwargs: Any) -> Any:
            return seed((value + shift) % 2**32 if isinstance(value, int) else value, *args, **kwargs)

        return call

    seed_torch = shifted(torch.manual_seed)
    for owner, name, call in (
        (torch, "manual_seed", seed_torch),
        (torch.random, "manual_seed", seed_torch),
        (random, "seed", shifted(random.seed)),
        (np.random, "seed", shifted(np.random.seed)),
    ):
        patches.set(owner, name, call)
