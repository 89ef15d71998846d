"""Join steps of a program: an activation, a residual and a norm become part of the linear layer beside them."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from whet.core.artefact.native.program import (
    AttendStep,
    CopyStep,
    ElementwiseStep,
    GatedStep,
    LinearStep,
    NormaliseStep,
    Step,
    read_by,
    written_by,
)
from whet.techniques.rewriting.native_program.builder import Builder
from whet.techniques.rewriting.native_program.strided import Strided, whole
from whet.techniques.rewriting.native_program.symbolic import product, same, same_all

_ACTIVATIONS = frozenset({"relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh", "sigmoid"})
_MOST_INPUTS, _MOST_FUNCTIONS = 8, 16  # of one small program

_Join = Callable[[Builder, Step, Step], Step | None]


def fused(builder: Builder) -> Builder:
    """Join the steps of a program, and return it."""
    _share_heads(builder)
    for join in (_with_activation, _with_residual, _with_norm, _as_one_program):
        _join_all(builder, join)
    return builder


def _share_heads(builder: Builder) -> None:
    """Have attention read each head of keys and values where copies of it, one for each head of queries, were made."""
    uses = _uses(builder)
    copies = {step.out.buffer: step for step in builder.steps if isinstance(step, CopyStep)}
    for i, step in enumerate(builder.steps):
        if not isinstance(step, AttendStep):
            continue
        found: list[Any] = [copies.get(place.buffer) for place in (step.k, step.v)]
        if all(
            copy is not None and uses[place.buffer] == 1 and _is_whole(builder, place) and _repeats_heads(copy)
            for place, copy in zip((step.k, step.v), found, strict=True)
        ):
            k, v = (copy.x.selected(2, 0) for copy in found)
            if same_all(k.shape[:3], v.shape[:3]):
                builder.steps[i] = dataclasses.replace(step, k=k, v=v)
                builder.steps[:] = [other for other in builder.steps if other not in found]


def _repeats_heads(copy: Any) -> bool:
    """Return whether a copy [B, heads, times, T, D] repeats each head."""
    x = copy.x
    return x.dim == 5 and same(x.strides[2], 0) and same(x.strides[4], 1)


def _join_all(builder: Builder, join: _Join) -> None:
    """Put what `join` makes of a step and the only one that reads what it writes in the place of the latter."""
    uses = _uses(builder)
    writers: dict[int, int] = {}  # of a buffer, the index in kept
    kept: list[Step | None] = []
    for step in builder.steps:
        made = step
        for place in read_by(step):
            index = writers.get(place.buffer)
            writer = kept[index] if index is not None and uses[place.buffer] == 1 else None
            found = None if writer is None else join(builder, writer, made)
            if found is not None and index is not None:
                kept[index], made = None, found
        kept.append(made)
        writers.update((place.buffer, len(kept) - 1) for place in written_by(made))
    builder.steps[:] = [step for step in kept if step is not None]


def _uses(builder: Builder) -> Counter[int]:
    """Return how often each buffer is read. What several steps write counts as read more than once."""
    uses = Counter(place.buffer for step in builder.steps for place in read_by(step))
    uses.update(result.place.buffer for result in builder.results if result.place is not None)
    written = Counter(place.buffer for step in builder.steps for place in written_by(step))
    uses.update({buffer: 2 for buffer, times in written.items() if times > 1})
    return uses


def _is_whole(builder: Builder, x: Any) -> bool:
    """Return whether a place is all of its buffer, in order."""
    return same(x.offset, 0) and x.is_contiguous and same(product(x.shape), builder.counts[x.buffer])


def _with_activation(builder: Builder, writer: Step, step: Step) -> Step | None:
    if not isinstance(writer, LinearStep) or not isinstance(step, ElementwiseStep):
        return None
    is_activation = len(step.inputs) == 1 and len(step.code) == 1 and step.code[0][0] in _ACTIVATIONS
    is_bare = writer.activation == "NONE" and writer.residual is None
    if not (is_activation and is_bare and all(_is_whole(builder, x) for x in (step.inputs[0], step.out))):
        return None
    out = whole(step.out.buffer, writer.out.shape)
    return dataclasses.replace(writer, out=out, activation=step.code[0][0].upper())


def _with_residual(builder: Builder, writer: Step, step: Step) -> Step | None:
    if not isinstance(writer, LinearStep) or not isinstance(step, ElementwiseStep) or writer.residual is not None:
        return None
    if step.code != (("add", 0, 1),) or not _is_whole(builder, step.out):
        return None
    own = [x for x in step.inputs if x.buffer == writer.out.buffer]
    others: list[Any] = [x for x in step.inputs if x.buffer != writer.out.buffer]
    if len(own) != 1 or not _is_whole(builder, own[0]) or not same_all(own[0].shape, step.out.shape):
        return None
    residual: Strided | None = others[0].reshaped(writer.out.shape)
    if residual is None or builder.buffers[residual.buffer].dtype != "float32" or not same(residual.strides[-1], 1):
        return None
    return dataclasses.replace(writer, out=whole(step.out.buffer, writer.out.shape), residual=residual)


def _with_norm(builder: Builder, writer: Step, step: Step) -> Step | None:
    if not isinstance(writer, NormaliseStep) or not isinstance(step, LinearStep | GatedStep):
        return None
    is_read = step.x.buffer == writer.out.buffer and same_all(step.x.shape, writer.out.shape)
    if not is_read or step.norm is not None or not _is_whole(builder, step.x) or writer.other is not None:
        return None
    return dataclasses.replace(step, x=writer.x, norm=writer.norm)


def _as_one_program(builder: Builder, writer: Step, step: Step) -> Step | None:
    if not isinstance(writer, ElementwiseStep) or not isinstance(step, ElementwiseStep):
        return None
    buffer = writer.out.buffer
    here: list[Any] = [x for x in step.inputs if x.buffer == buffer]
    is_same = len(here) == 1 and _is_whole(builder, here[0]) and same_all(here[0].shape, writer.out.shape)
    num_inputs = len(writer.inputs) + len(step.inputs) - 1
    num_functions = len(writer.code) + len(step.code)
    if not is_same or not same_all(writer.out.shape, step.out.shape) or not writer.code:
        return None
    if num_inputs > _MOST_INPUTS or num_functions > _MOST_FUNCTIONS:
        return None
    others = [i for i, x in enumerate(step.inputs) if x.buffer != buffer]
    own = [i for i, x in enumerate(step.inputs) if x.buffer == buffer]
    first, shift = len(writer.inputs), len(others)
    places = {i: first + n for n, i in enumerate(others)}
    places[own[0]] = num_inputs + len(writer.code) - 1
    for n in range(len(step.code)):
        places[len(step.inputs) + n] = num_inputs + len(writer.code) + n
    code = [(name, a if a < first else a + shift, b if b < first else b + shift) for name, a, b in writer.code]
    code += [(name, places[a], places[b]) for name, a, b in step.code]
    inputs = (*writer.inputs, *(step.inputs[i] for i in others))
    return dataclasses.replace(step, inputs=inputs, code=tuple(code))
