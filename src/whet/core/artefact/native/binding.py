"""Make a program ready for inputs of given shapes: places in memory, and one plan of operations on them."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.core.artefact.native.memory import ALIGNMENT, Life, lay_out
from whet.core.artefact.native.padding import Of, Padded, without_padding
from whet.core.artefact.native.program import (
    LinearStep,
    NormStep,
    Place,
    Program,
    Result,
    Step,
    read_by,
    written_by,
)
from whet.core.artefact.native.sizes import Sizes
from whet.core.artefact.native.torch_calls import TorchCalls
from whet.errors import ArtefactError, InputsError
from whet.kernels.graph import operations
from whet.kernels.graph.plan import Plan
from whet.kernels.graph.seen import SeenRows
from whet.kernels.linear.packed import PackedWeights

Numbers = NDArray[Any]

_TYPES: dict[str, tuple[type[Any], torch.dtype]] = {
    "float32": (np.float32, torch.float32),
    "int64": (np.int64, torch.int64),
    "int32": (np.int32, torch.int32),
    "bool": (np.bool_, torch.bool),
}


@dataclass(frozen=True)
class Loaded:
    """Hold what a program needs whatever the shapes: packed matrices, stored tensors, and the calls of torch."""

    program: Program
    matrices: Mapping[str, PackedWeights]
    tensors: Mapping[str, Tensor]
    calls: TorchCalls


class Arena:
    """Hold the memory that programs of all shapes compute in, one after the other. It grows, and then moves."""

    def __init__(self) -> None:
        self._room: Numbers = np.empty(0, np.uint8)

    def grow(self, num_bytes: int) -> bool:
        """Have room for so many bytes, and return whether it moved, so that no plan on it may run any more."""
        if num_bytes + ALIGNMENT <= len(self._room):
            return False
        self._room = np.empty(num_bytes + ALIGNMENT, np.uint8)
        return True

    def part(self, offset: int, size: int, dtype: type[Any]) -> Numbers:
        """Return `size` numbers at an offset in bytes."""
        start = -self._room.ctypes.data % ALIGNMENT + offset
        return self._room[start : start + size * np.dtype(dtype).itemsize].view(dtype)


class Bound:
    """Run a program on inputs of the shapes that it was bound to."""

    def __init__(self, loaded: Loaded, shapes: Sequence[Sequence[int]], arena: Arena) -> None:
        """Bind a program. Other programs on the same arena may have to be bound again: `moved` says so.

        Raises:
            InputsError: A free size is 0, or inputs have shapes that the program does not take.
            ArtefactError: The program is damaged: a place lies outside its buffer.
        """
        program = loaded.program
        self._loaded = loaded
        self._sizes = Sizes(_free_sizes(program, shapes))
        if empty := [f"size {dim} of input {i}" for i, dim in program.free.values() if shapes[i][dim] == 0]:
            raise InputsError(f"{' and '.join(empty)} is 0; whet's kernels take inputs with at least one of each")
        self._fixed = loaded.calls.fixed(self._sizes)
        self._numbers: list[Numbers] = []
        self.moved = self._lay_out(shapes, arena)
        self._filled = [
            (buffer.origin == "input", int(buffer.source), numbers)
            for i, (buffer, numbers) in enumerate(zip(program.buffers, self._numbers, strict=True))
            if buffer.origin == "input" or (buffer.origin == "value" and loaded.calls.varies(int(buffer.source)))
        ]
        self._results = [self._result(result) for result in program.results]

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for flat inputs. They belong to the caller."""
        values = self._loaded.calls.varying(self._sizes, self._fixed, inputs)
        for is_input, source, numbers in self._filled:
            given = inputs[source] if is_input else values[source]
            np.copyto(numbers, given.detach().reshape(-1).numpy())
        padding = self._loaded.program.padding
        has_padding = padding is not None and not all(bool(inputs[i].all()) for i in padding.masks.values())
        if has_padding and self._padded is not None:
            seen = self._padded.seen(self._numbers)
            self._plan_without_padding.run(None if seen is None else SeenRows(seen))
        else:
            self._plan.run()
        # numpy copies, on this thread: torch's clone would wake threads that spin on the cores of the next call
        return tuple(
            values[found].detach().clone() if isinstance(found, int) else torch.from_numpy(found.copy())
            for found in self._results
        )

    @property
    def leaves_out_padding(self) -> bool:
        return self._padded is not None

    # Plans are made when they are first needed: with padding or without, often one of them never is

    @functools.cached_property
    def _plan(self) -> Plan:
        return self._planned([(step, "all") for step in self._loaded.program.steps])

    @functools.cached_property
    def _padded(self) -> Padded | None:
        return without_padding(self._loaded.program, self._sizes)

    @functools.cached_property
    def _plan_without_padding(self) -> Plan:
        assert self._padded is not None
        return self._planned(self._padded.steps)

    def _planned(self, steps: Sequence[tuple[Step, Of]]) -> Plan:
        return Plan([self._operation(*step) for step in steps], keep=[self._numbers, self._loaded.matrices])

    def _lay_out(self, shapes: Sequence[Sequence[int]], arena: Arena) -> bool:
        """Find memory for every buffer, and return whether the arena moved."""
        program, sizes = self._loaded.program, self._sizes
        counts = [sizes(buffer.size) for buffer in program.buffers]
        for buffer, count in zip(program.buffers, counts, strict=True):
            if buffer.origin == "input" and count != math.prod(shapes[int(buffer.source)]):
                raise _wrong_shape(int(buffer.source), shapes)
        same = _in_place(program, counts, sizes)
        lives = _lives(program, same)
        types = [_TYPES[buffer.dtype][0] for buffer in program.buffers]
        in_arena = [i for i in lives if not self._is_constant(i)]
        offsets, num_bytes = lay_out([Life(counts[i] * np.dtype(types[i]).itemsize, *lives[i]) for i in in_arena])
        moved = arena.grow(num_bytes)
        offset_of = dict(zip(in_arena, offsets, strict=True))
        for i, buffer in enumerate(program.buffers):
            if self._is_constant(i):
                self._numbers.append(self._constant(i, counts[i], _TYPES[buffer.dtype][1]))
            else:
                self._numbers.append(arena.part(offset_of.get(same[i], 0), counts[i], types[i]))
        return moved

    def _is_constant(self, index: int) -> bool:
        buffer = self._loaded.program.buffers[index]
        is_fixed = buffer.origin == "value" and not self._loaded.calls.varies(int(buffer.source))
        return buffer.origin == "tensor" or is_fixed

    def _constant(self, index: int, count: int, dtype: torch.dtype) -> Numbers:
        buffer = self._loaded.program.buffers[index]
        if buffer.origin == "tensor":
            found = self._loaded.tensors[str(buffer.source)]
        else:
            found = self._fixed[int(buffer.source)]
        if found.numel() != count or found.dtype is not dtype:
            raise ArtefactError(
                f"the artefact is damaged: {buffer.source} has {found.numel()} numbers in {found.dtype}, not {count} "
                f"in {dtype}; write it again with `whet apply`"
            )
        flat: Numbers = found.detach().contiguous().reshape(-1).numpy()
        return flat

    def _result(self, result: Result) -> Numbers | int:
        """Return the numbers of an output as they lie in memory, or the index of the call that gave it."""
        if result.place is None:
            assert result.value is not None
            return result.value
        view = self._view(result.place)
        flat = self._numbers[result.place.buffer]
        first = flat[self._sizes(result.place.offset) :]
        strides = [stride * flat.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(first, view.shape, strides)

    def _operation(self, step: Step, of: Of) -> Any:
        """Return the operation of the kernels that a step names, with addresses in place of places."""
        fields = {
            item.name: self._argument(item.name, getattr(step, item.name))
            for item in dataclasses.fields(step)
            if item.name != "step"
        }
        operation = getattr(operations, step.step)(**fields)
        return operation if of == "all" else operations.OfRows(operation, of)

    def _argument(self, name: str, found: Any) -> Any:
        if isinstance(found, Place):
            return self._view(found)
        if isinstance(found, NormStep):
            weight, bias = (None if place is None else self._view(place) for place in (found.weight, found.bias))
            return operations.Norm(weight, bias, found.eps, found.is_rms)
        if name == "weights":
            return self._loaded.matrices[found]
        if name == "activation":
            return operations.Activation[found]
        if isinstance(found, tuple) and name != "code":
            return tuple(self._view(place) for place in found)
        return found

    def _view(self, place: Place) -> operations.View:
        numbers, sizes = self._numbers[place.buffer], self._sizes
        offset, shape, strides = sizes(place.offset), sizes.all(place.shape), sizes.all(place.strides)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if min((offset, *shape, *strides)) < 0 or (0 not in shape and last >= len(numbers)):
            raise ArtefactError(
                f"the artefact is damaged: it reads number {last} of {len(numbers)}; write it again with `whet apply`"
            )
        dtype = _TYPES[self._loaded.program.buffers[place.buffer].dtype][1]
        return operations.View(numbers.ctypes.data + offset * numbers.itemsize, shape, strides, dtype)


def _free_sizes(program: Program, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    for i, dim in program.free.values():
        if i >= len(shapes) or dim >= len(shapes[i]):
            raise _wrong_shape(i, shapes)
    return {name: shapes[i][dim] for name, (i, dim) in program.free.items()}


def _wrong_shape(index: int, shapes: Sequence[Sequence[int]]) -> InputsError:
    found = list(shapes[index]) if index < len(shapes) else "missing"
    return InputsError(f"input {index} has the shape {found}, which the program does not take")


def _in_place(program: Program, counts: Sequence[int], sizes: Sizes) -> list[int]:
    """Return for each buffer the buffer whose memory it takes: a linear layer may write over what it adds to."""
    same = list(range(len(program.buffers)))
    lives = _lives(program, same)
    for i, step in enumerate(program.steps):
        if not isinstance(step, LinearStep) or step.residual is None:
            continue
        old, new = step.residual, step.out
        layouts = [(sizes(p.offset), sizes.all(p.shape), sizes.all(p.strides)) for p in (old, new)]
        if (
            lives[old.buffer][1] == i
            and program.buffers[old.buffer].origin == "room"
            and step.x.buffer != old.buffer
            and same[step.x.buffer] != same[old.buffer]
            and counts[old.buffer] == counts[new.buffer]
            and lives[new.buffer][0] == i
            and layouts[0] == layouts[1]
        ):
            same[new.buffer] = same[old.buffer]
    return same


def _lives(program: Program, same: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the first and the last step that needs each buffer that has memory of its own."""
    lives: dict[int, tuple[int, int]] = {}

    def needs(buffer: int, i: int) -> None:
        first, last = lives.get(same[buffer], (i, i))
        lives[same[buffer]] = min(first, i), max(last, i)

    for i, buffer in enumerate(program.buffers):
        if buffer.origin != "room":
            needs(i, -1)
    for i, step in enumerate(program.steps):
        for place in (*read_by(step), *written_by(step)):
            needs(place.buffer, i)
    for result in program.results:
        if result.place is not None:
            needs(result.place.buffer, len(program.steps))
    return lives
