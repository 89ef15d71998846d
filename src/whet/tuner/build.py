"""Build a candidate from a recipe: apply its techniques in the order of their stages, and name refused ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from whet.core.artefact import program
from whet.core.recipe import Step
from whet.core.workload import ExaminedWorkload
from whet.errors import RecipeError
from whet.measure.machine import Machine
from whet.techniques import TABLE
from whet.techniques.technique import AnyTechnique, Candidate, NotApplicable, Stage, Technique, named


def options_of(step: Step) -> Any:
    """Return the frozen options of a step's technique.

    Raises:
        RecipeError: There is no such technique or option.
    """
    return technique_of(step).options_of(step)


def technique_of(step: Step) -> Technique:
    """Return the technique that a step names.

    Raises:
        RecipeError: There is no such technique.
    """
    return named(step, TABLE)


def in_order(steps: Sequence[Step], table: Mapping[str, AnyTechnique] = TABLE) -> list[Step]:
    """Return steps in the order of their stages, and of the table of techniques within a stage.

    Raises:
        RecipeError: Two steps exclude each other.
    """
    claimed: dict[str, str] = {}
    for step in steps:
        for group in named(step, table).groups:
            if group in claimed:
                raise RecipeError(f"{claimed[group]} and {step.technique} exclude each other: both choose the {group}")
            claimed[group] = step.technique
    return sorted(steps, key=lambda step: named(step, table).place)


def refusals(steps: Sequence[Step], examined: ExaminedWorkload, machine: Machine) -> list[tuple[Step, str]]:
    """Return the steps that do not apply to this workload on this machine, each with its reason."""
    refused = []
    for step in steps:
        technique, options = technique_of(step), options_of(step)
        if why := graph_refusal(technique, examined):
            refused.append((step, why))
        elif isinstance(verdict := technique.check(examined, machine, options), NotApplicable):
            refused.append((step, verdict.reason))
    return refused


def graph_refusal(technique: Technique, examined: ExaminedWorkload) -> str:
    """Return why a technique cannot be used on this model because it needs a graph of it, or "" where it can."""
    return "" if technique.runs_python else program.refusal(examined)


def is_in_process(steps: Sequence[Step]) -> bool:
    """Return whether the steps' result cannot be saved, so that each process makes it anew from the target."""
    return any(step.technique in TABLE and TABLE[step.technique].in_process for step in steps)


def computes_in_few_bits(examined: ExaminedWorkload, steps: Sequence[Step]) -> bool:
    """Return whether a recipe's result rounds to fewer bits than float32 has, or the model itself does."""
    tensors = [*examined.workload.model.parameters(), *examined.flat_inputs[0], *examined.outputs[0]]
    if any(tensor.is_floating_point() and tensor.dtype.itemsize < 4 for tensor in tensors):
        return True
    for step in steps:
        technique = technique_of(step)
        dtype = technique.dtype_of(options_of(step)) if technique.dtype_of else None
        if technique.stage is Stage.PRECISION or dtype not in (None, "float32", "float64"):
            return True
    return False


def build(examined: ExaminedWorkload, steps: Sequence[Step]) -> Candidate:
    """Apply the steps, in order, to the original."""
    candidate = Candidate.original(examined)
    for step in in_order(steps):
        candidate = technique_of(step).apply(candidate, options_of(step))
    return candidate
