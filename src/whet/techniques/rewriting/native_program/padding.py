"""Say which sizes of a program are those of sequences whose rows may be padding, and which inputs say so."""

from collections.abc import Iterator

from whet.core.artefact.native.program import AttendStep, Padding, Place, read_by, written_by
from whet.core.signature import Signature
from whet.techniques.rewriting.native_program.builder import Builder
from whet.techniques.rewriting.native_program.symbolic import same, written


def padding_of(builder: Builder, signature: Signature) -> Padding | None:
    """Return the padding of the first attention within sequences that has a mask from inputs; None if there is none."""
    for step in builder.steps:
        if not isinstance(step, AttendStep) or step.mask is None or not same(step.q.shape[2], step.k.shape[2]):
            continue
        buffers = {step.mask.buffer, *(place.buffer for place in _sources(builder, step.mask))}
        if masks := sorted(_inputs(builder, buffers)):
            names = {signature.inputs[i].name or f"input {i}": i for i in masks}
            return Padding(written(step.q.shape[0]), written(step.q.shape[2]), names)
    return None


def _sources(builder: Builder, mask: Place) -> Iterator[Place]:
    """Yield what the steps read that write a mask."""
    for step in builder.steps:
        if any(place.buffer == mask.buffer for place in written_by(step)):
            yield from read_by(step)


def _inputs(builder: Builder, buffers: set[int]) -> set[int]:
    """Return the inputs that buffers hold, or are made of by torch."""
    found = {int(builder.buffers[i].source) for i in buffers if builder.buffers[i].origin == "input"}
    waiting = [int(builder.buffers[i].source) for i in buffers if builder.buffers[i].origin == "value"]
    for call in waiting:
        found.update(builder.calls[call].named("input"))
        waiting += [i for i in builder.calls[call].named("value") if i not in waiting]
    return found
