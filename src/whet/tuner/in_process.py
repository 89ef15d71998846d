"""Handle recipes that cannot be saved: each process applies them anew to the target and runs them in place."""

from pydantic import BaseModel, TypeAdapter

from whet.comparison.run import Run
from whet.core.artefact import Artefact, Manifest, set_threads
from whet.core.recipe import Step
from whet.core.signature import Signature
from whet.techniques.technique import Candidate
from whet.tuner.build import build
from whet.tuner.known_target import KnownTarget
from whet.tuner.variant_process import time_alone

ADVICE = (
    "torch.compile makes it anew from the model's own code in each process, so there is no model/ to load: in Python, "
    "whet.apply(RECIPE, MODEL, INPUTS) returns it, ready to be called; `whet apply RECIPE TARGET` makes and checks it"
)
"""Tell the user what to do with a winner that cannot be saved."""

_SIGNATURE = TypeAdapter(Signature)


def as_artefact(candidate: Candidate) -> Artefact:
    """Return a candidate that works in process as an artefact, and set torch's number of threads, as load does."""
    assert candidate.runtime is not None
    set_threads(candidate.num_threads)
    manifest = Manifest(
        runtime=candidate.runtime.NAME,
        signature=_SIGNATURE.dump_python(candidate.signature, mode="json"),
        num_threads=candidate.num_threads,
        notes=list(candidate.notes),
    )
    return Artefact(candidate.runtime, manifest)


class RebuildRequest(BaseModel, frozen=True):
    """Tell a process what to rebuild and time, with `budget_s` seconds of timing."""

    known: KnownTarget
    steps: tuple[Step, ...]
    budget_s: float


def measure_rebuilt(request: RebuildRequest) -> Run:
    """Apply a recipe in this process, and time the result alone. Its memory includes the compiler's, as when served."""
    examined = request.known.open()
    artefact = as_artefact(build(examined, request.steps))
    return time_alone(artefact.run, examined.flat_inputs, request.budget_s)
