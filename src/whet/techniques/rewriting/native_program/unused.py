"""Leave out of a program what nothing needs: calls of torch, and the tensors that only they take."""

import dataclasses
from typing import Any

from whet.core.artefact.native.program import read_by, written_by
from whet.techniques.rewriting.native_program.builder import Builder


def without_unused(builder: Builder) -> Builder:
    """Leave out of a program the calls and the stored tensors that nothing needs, and return it."""
    used = {place.buffer for step in builder.steps for place in (*read_by(step), *written_by(step))}
    used |= {result.place.buffer for result in builder.results if result.place is not None}
    buffers = [builder.buffers[i] for i in used]
    needed = {int(buffer.source) for buffer in buffers if buffer.origin == "value"}
    needed |= {result.value for result in builder.results if result.value is not None}
    for i in reversed(range(len(builder.calls))):
        if i in needed:
            needed.update(builder.calls[i].named("value"))
    kept = sorted(needed)
    tensors = {str(buffer.source) for buffer in buffers if buffer.origin == "tensor"}
    tensors.update(name for i in kept for name in builder.calls[i].named("tensor"))
    _renumber(builder, kept, used)
    builder.tensors = {name: tensor for name, tensor in builder.tensors.items() if name in tensors}
    return builder


def _renumber(builder: Builder, kept: list[int], used: set[int]) -> None:
    """Keep these calls alone. What is left of buffers that nothing uses becomes empty room."""
    index = {old: new for new, old in enumerate(kept)}
    builder.calls = [
        dataclasses.replace(
            call,
            args=_with(call.args, index),
            kwargs={name: _with(argument, index) for name, argument in call.kwargs.items()},
        )
        for call in (builder.calls[i] for i in kept)
    ]
    for i, buffer in enumerate(builder.buffers):
        if i not in used:
            builder.buffers[i] = dataclasses.replace(buffer, origin="room", dtype="float32", size=0, source=0)
        elif buffer.origin == "value":
            builder.buffers[i] = dataclasses.replace(buffer, source=index[int(buffer.source)])
    builder.results = [
        result if result.value is None else dataclasses.replace(result, value=index[result.value])
        for result in builder.results
    ]


def _with(argument: Any, index: dict[int, int]) -> Any:
    """Return an argument with the new indices of calls."""
    if isinstance(argument, list):
        return [_with(item, index) for item in argument]
    if isinstance(argument, dict) and "value" in argument:
        return {**argument, "value": index[argument["value"]]}
    return argument
