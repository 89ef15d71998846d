"""Run a graph as one call of whet's own kernels: program.json, and model.safetensors with its weights.

Nothing is pickled, and neither torch's compiler nor the model's code is needed.
"""

import copy
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from whet.core.artefact.native.binding import Arena, Bound, Loaded
from whet.core.artefact.native.program import Matrix, Padding, Program, read_program, write_program
from whet.core.artefact.native.torch_calls import TorchCalls
from whet.core.artefact.runtime import Manifest, Runtime
from whet.errors import ArtefactError, reason
from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.packed import PackedWeights
from whet.kernels.linear.quantise import Int8Weights

PROGRAM = "program.json"
WEIGHTS = "model.safetensors"

_DTYPES = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16, Kind.S8: torch.int8}

_MOST_SHAPES = 256  # of inputs, for which plans are kept

Shapes = tuple[torch.Size, ...]


class NativeRuntime(Runtime):
    """Run a program with whet's kernels. Threads take turns.

    Raises:
        KernelsError: There are no compiled kernels here.
        ValueError: The tensors are not those of the program.
    """

    NAME = "native"

    def __init__(self, program: Program, tensors: Mapping[str, Tensor]) -> None:
        self.program = program
        self._stored: Mapping[str, Tensor] | None = tensors
        self._directory: Path | None = None  # of a model that was loaded: its files are what is written again
        packed = {name: _packed(name, matrix, tensors) for name, matrix in program.matrices.items()}
        used = {str(buffer.source) for buffer in program.buffers if buffer.origin == "tensor"}
        used.update(str(name) for call in program.calls for name in call.named("tensor"))
        read = {name: _as_read(tensors, name) for name in used}
        self._loaded = Loaded(program, packed, read, TorchCalls(program.calls, read, program.free))
        self._arena = Arena()
        self._bound: OrderedDict[Shapes, Bound] = OrderedDict()
        self._turn = threading.Lock()

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        shapes = tuple(x.shape for x in tensors)
        with self._turn:
            bound = self._bound.get(shapes)
            if bound is None:
                bound = self._bind(shapes)
            self._bound.move_to_end(shapes)
            return bound.run(tensors)

    def _bind(self, shapes: Shapes) -> Bound:
        bound = Bound(self._loaded, shapes, self._arena)
        if bound.moved:
            self._bound.clear()
        self._bound[shapes] = bound
        if len(self._bound) > _MOST_SHAPES:
            self._bound.popitem(last=False)
        return bound

    def leaving_out(self, padding: Padding | None) -> Self:
        """Return a runtime of the same weights that leaves out padding where it can; with None, nowhere."""
        other = copy.copy(self)
        other.program = dataclasses.replace(self.program, padding=padding)
        other._loaded = dataclasses.replace(self._loaded, program=other.program)
        other._arena, other._bound, other._turn = Arena(), OrderedDict(), threading.Lock()
        return other

    @property
    def leaves_out_padding(self) -> bool:
        """Return whether calls of the shapes that were last seen can leave out padding."""
        return any(bound.leaves_out_padding for bound in self._bound.values())

    @property
    def conditions(self) -> list[str]:
        """Return that no free size is 0."""
        return [f"L['tensors'][{i}].size()[{dim}] >= 1" for i, dim in self.program.free.values()]

    def write(self, directory: Path) -> None:
        write_whole(directory / PROGRAM, write_program(self.program) + "\n")
        if self._directory is not None:
            write_whole(directory / WEIGHTS, (self._directory / WEIGHTS).read_bytes())
        elif self._stored is not None:
            write_whole(directory / WEIGHTS, save(dict(self._stored)))

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        again = "write it again with `whet apply`"
        try:
            program = read_program((directory / PROGRAM).read_text(encoding="utf-8"))
            tensors = load_file(directory / WEIGHTS)
            runtime = cls(program, tensors)
        except (OSError, ValueError, SafetensorError) as error:
            raise ArtefactError(f"{directory} is damaged: {reason(error)}; {again}") from error
        runtime._stored, runtime._directory = None, directory
        return runtime


def _packed(name: str, matrix: Matrix, tensors: Mapping[str, Tensor]) -> PackedWeights:
    """Return a matrix as the kernels read it."""
    shape = (matrix.num_outputs, matrix.num_inputs)
    kind = Kind[matrix.kind]
    stored = _tensor(tensors, f"{name}.weight", shape, _DTYPES[kind])
    weight: Tensor | Int8Weights = stored
    if kind is Kind.S8:
        weight = Int8Weights(stored, _tensor(tensors, f"{name}.scale", shape[:1]))
    bias = _tensor(tensors, f"{name}.bias", shape[:1]) if matrix.has_bias else None
    return PackedWeights(library(), kind, weight, bias)


def _tensor(
    tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    found = tensors.get(name)
    if found is None or tuple(found.shape) != shape or found.dtype is not dtype:
        had = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise ValueError(f"{name} is {had}, not {dtype} {list(shape)}")
    return found


def _as_read(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a stored tensor as the steps read it, in memory of its own: half-precision numbers become float32."""
    found = tensors.get(name)
    if found is None:
        raise ValueError(f"{name} is missing")
    return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found.clone()
