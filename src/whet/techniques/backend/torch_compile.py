"""Compile what can be compiled of a model that torch.export refuses, with graph breaks where Python decides.

What            torch.compile compiles the model's own code. Where Python asks for a tensor's value, the graph breaks
                and that line runs in Python. Every path through the code that a call takes is compiled and guarded.
When it helps   Models with data-dependent branches or loops, which no backend can take as one graph.
When it hurts   Each graph break costs a return to Python. Compiling takes seconds in every process. Nothing can be
                saved: every process needs the model's own code. A model that torch.export can export is refused here,
                since a backend that compiles all of it serves it better.
Numerics        The same arithmetic in another order: within 1e-5 relative in float32, on every branch.
Composes        After every precision and layout that keeps the model's code; alone in its group (backend). Weights are
                not frozen into the graphs, since a graph must see what Python code between two graphs has changed.
Source          Ansel et al., "PyTorch 2", ASPLOS 2024; torch.compile.
"""

from whet.core.artefact import inductor, program
from whet.core.artefact.in_process import InProcessRuntime
from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError, foreign
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.technique import (
    BACKEND,
    Applicability,
    Applies,
    Candidate,
    NoOptions,
    NotApplicable,
    Stage,
    Technique,
)


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    """Check that torch.export refuses the model, and that there is a C++ compiler."""
    if missing := inductor.missing_tools(at_load=True):
        return NotApplicable(missing)
    if examined.effects:
        return NotApplicable(
            f"forward {'; '.join(examined.effects)}: torch.compile may leave that out, or do it at another time"
        )
    why = program.refusal(examined)
    if not why:
        return NotApplicable(
            "torch.export takes the whole model, so use a backend such as inductor, whose result can be saved"
        )
    return Applies(f"compiled in each process, with graph breaks, because {why}")


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate compiled for the inputs of its workload.

    Raises:
        TargetError: The compiler fails, or the compiled model gives other outputs.
    """
    examined = candidate.examined
    runtime = InProcessRuntime(candidate.module, is_dynamic=examined.signature.is_dynamic)
    with foreign(TargetError, "torch.compile cannot compile the model"), inductor.quiet():
        inductor.check_is_pure(runtime, examined)
        for batch in (*examined.flat_inputs, *examined.flat_calibration):
            runtime.run(batch)
    graphs, breaks = runtime.num_graphs, runtime.num_graph_breaks
    note = f"torch_compile: {_count(graphs, 'graph')} with {_count(breaks, 'graph break')} on the inputs given"
    return candidate.with_runtime(runtime, note)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


TECHNIQUE = Technique(
    name="torch_compile",
    stage=Stage.BACKEND,
    order=40,
    card=__doc__,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(profile, limits, dtype=profile.dtype, removes_overhead=True),
    apply=apply,
    groups=frozenset({BACKEND}),
    runs_python=True,
    in_process=True,
    compiles=True,
)
