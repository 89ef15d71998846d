"""Recipes that cannot be saved: each process applies them anew to the target and runs them in place."""

from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from whet.artefact import Artefact, Manifest, set_threads
from whet.recipe import Step
from whet.signature import Signature
from whet.technique import Candidate
from whet.tuner.build import build
from whet.tuner.variant_process import time_alone
from whet.workload import examine
from whet.workloads.handover import open_target

ADVICE = (
    "torch.compile makes it anew from the model's own code in each process, so there is no model/ to load: in Python, "
    "whet.apply(RECIPE, MODEL, INPUTS) returns it, ready to be called; `whet apply RECIPE TARGET` makes and checks it"
)
"""What to do with a winner that cannot be saved."""

_STEPS = TypeAdapter(list[Step])
_SIGNATURE = TypeAdapter(Signature)


def as_artefact(candidate: Candidate) -> Artefact:
    """A candidate that works in process, called as a loaded artefact is. Sets torch's thread count as load does."""
    assert candidate.runtime is not None
    set_threads(candidate.num_threads)
    manifest = Manifest(
        runtime=candidate.runtime.NAME,
        signature=_SIGNATURE.dump_python(candidate.signature, mode="json"),
        num_threads=candidate.num_threads,
        notes=list(candidate.notes),
    )
    return Artefact(candidate.runtime, manifest)


def measure_rebuilt(
    target: str, steps: list[dict[str, Any]], signature: dict[str, Any], budget_s: float
) -> dict[str, Any]:
    """Apply a recipe to a target in this process, and time what comes of it alone, as `measure_finalist` does.

    The memory measured holds the compiler: a process that serves such a variant holds it too.
    """
    workload = open_target(target)
    subject = examine(workload, with_quality=False)
    subject = replace(subject, signature=_SIGNATURE.validate_python(signature))
    artefact = as_artefact(build(subject, _STEPS.validate_python(steps)))
    return time_alone(artefact.run, subject.flat_inputs, budget_s)
