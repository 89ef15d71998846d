"""Collect the parts of a program while a graph is lowered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whet.core.artefact.native.program import Buffer, Call, ElementwiseStep, LinearStep, Result, Step
from whet.techniques.rewriting.native_program.strided import Strided, whole
from whet.techniques.rewriting.native_program.symbolic import Size, product, written

CONSTANTS = "constants"  # the stored tensor of all single numbers


@dataclass
class Weights:
    """Hold the float32 weights of a linear layer, [outputs, inputs], and its bias."""

    weight: Tensor
    bias: Tensor | None


@dataclass
class Builder:
    """Hold a program that grows. Matrices are float32 still: their precision is chosen when it is whole.

    Attributes:
        numbers: The single numbers that steps read, each with its index among them.
        counts: How many numbers each buffer holds.
        tables: The names of the stored tensors that embeddings look up.
    """

    free: dict[str, tuple[int, int]] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    matrices: dict[str, Weights] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    numbers: dict[float, int] = field(default_factory=dict)
    counts: list[Size] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    _known: dict[Any, Any] = field(default_factory=dict)

    def room(self, shape: Sequence[Size]) -> Strided:
        """Return new contiguous memory for float32 numbers."""
        return self._buffer(Buffer("room", "float32", written(product(shape))), shape)

    def input(self, index: int, dtype: str, shape: Sequence[Size]) -> Strided:
        return self._once(("input", index), Buffer("input", dtype, written(product(shape)), index), shape)

    def value(self, index: int, dtype: str, shape: Sequence[Size]) -> Strided:
        """Return the memory of what a call of torch gives."""
        return self._once(("value", index), Buffer("value", dtype, written(product(shape)), index), shape)

    def constant(self, tensor: Tensor, name: str = "") -> Strided:
        """Return the memory of a tensor that is stored."""
        stored = self.stored(tensor, name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return self._once(("tensor", stored), Buffer("tensor", dtype, tensor.numel(), stored), tensor.shape)

    def stored(self, tensor: Tensor, name: str = "") -> str:
        """Store a tensor, and return the name that it is stored by."""
        key = ("stored", tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and key in self._known:
            return str(self._known[key][0])
        found = self.name(name or "constant", self.tensors)
        self.tensors[found] = tensor.detach()
        self._known[key] = (found, tensor)  # the tensor lives on, so that no other gets its address
        return found

    def number(self, number: float) -> Strided:
        """Return the place of a single number."""
        index = self.numbers.setdefault(float(number), len(self.numbers))
        if ("tensor", CONSTANTS) not in self._known:
            self._known["tensor", CONSTANTS] = self._buffer(Buffer("tensor", "float32", 0, CONSTANTS), (0,))
        return Strided(self._known["tensor", CONSTANTS].buffer, index, (), ())

    def finish_numbers(self) -> None:
        """Store the single numbers."""
        if self.numbers:
            buffer = self._known["tensor", CONSTANTS].buffer
            self.buffers[buffer] = Buffer("tensor", "float32", len(self.numbers), CONSTANTS)
            self.tensors[CONSTANTS] = torch.tensor(list(self.numbers), dtype=torch.float32)

    def matrix(self, name: str, weight: Tensor, bias: Tensor | None) -> str:
        """Store the weights of a linear layer, and return the name that they are stored by."""
        found = self.name(name or "linear", self.matrices)
        self.matrices[found] = Weights(weight.detach().float(), None if bias is None else bias.detach().float())
        return found

    def linear(self, x: Strided, matrix: str, activation: str = "NONE") -> Strided:
        """Emit a linear layer of rows [R, K], and return [R, N]."""
        out = self.room((x.shape[0], len(self.matrices[matrix].weight)))
        self.steps.append(LinearStep(x, matrix, out, activation))
        return out

    def elementwise(self, name: str, shape: Sequence[Size], *operands: Strided) -> Strided:
        """Emit one operation on each number of operands that are broadcast to a shape."""
        out = self.room(shape)
        places = tuple(operand.expanded(shape) for operand in operands)
        self.steps.append(ElementwiseStep(places, ((name, 0, len(places) - 1),), out))
        return out

    def name(self, wanted: str, taken: Any) -> str:
        found, i = wanted, 1
        while found in taken or found == CONSTANTS:
            found, i = f"{wanted}.{i}", i + 1
        return found

    def _once(self, key: Any, buffer: Buffer, shape: Sequence[Size]) -> Strided:
        if key not in self._known:
            self._known[key] = self._buffer(buffer, shape)
        found: Strided = self._known[key]
        return found

    def _buffer(self, buffer: Buffer, shape: Sequence[Size]) -> Strided:
        self.buffers.append(buffer)
        self.counts.append(product(shape))
        return whole(len(self.buffers) - 1, shape)
