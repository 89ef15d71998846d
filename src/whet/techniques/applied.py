"""Apply a recipe's techniques to the parts of a training loop."""

from collections.abc import Mapping, Sequence

from whet.core.recipe import Step
from whet.errors import RecipeError
from whet.measure.machine import Machine
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import guard_processes, why_refused
from whet.techniques.technique import NotApplicable, named
from whet.techniques.training_technique import TrainingTechnique


def unfit(
    parts: Parts, steps: Sequence[Step], table: Mapping[str, TrainingTechnique], machine: Machine
) -> list[tuple[Step, NotApplicable]]:
    """Return the steps that do not apply to these parts on this machine, with what their techniques say.

    Raises:
        RecipeError: The table has no such technique, or a technique no such option.
    """
    found = []
    for step in steps:
        technique = named(step, table)
        verdict = technique.check(parts, machine, technique.options_of(step))
        if why := why_refused(technique.refuses, parts.model):
            verdict = NotApplicable(why)
        if isinstance(verdict, NotApplicable):
            found.append((step, verdict))
    return found


def still_to_apply(
    parts: Parts, steps: Sequence[Step], table: Mapping[str, TrainingTechnique], machine: Machine
) -> tuple[list[Step], list[tuple[Step, NotApplicable]]]:
    """Return the steps of a recipe that change these parts, and those whose techniques are in effect already.

    Raises:
        RecipeError: A technique does not apply here, the table has none of that name, or it has no such option.
    """
    done = unfit(parts, steps, table, machine)
    for step, verdict in done:
        if not verdict.is_so:
            raise RecipeError(f"{step.technique} does not apply here: {verdict.reason}; leave it out of the recipe")
    left_out = [step for step, _ in done]
    return [step for step in steps if step not in left_out], done


def applied(parts: Parts, steps: Sequence[Step], table: Mapping[str, TrainingTechnique]) -> Parts:
    """Return the parts with every technique applied, in the order of their stages.

    Raises:
        RecipeError: The table has no such technique, or a technique no such option.
    """
    for step in sorted(steps, key=lambda step: named(step, table).place):
        technique = named(step, table)
        parts = technique.apply(parts, technique.options_of(step))
    guard_processes(parts, {step.technique: table[step.technique].refuses for step in steps})
    return parts
