"""Make a whole program of what was lowered, with its matrices in a precision."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from whet.core.artefact.native.program import Matrix, Program, Result
from whet.kernels.linear.quantise import quantise_int8
from whet.techniques.rewriting.native_program.builder import Builder, Weights
from whet.techniques.rewriting.native_program.strided import Strided

Precision = Literal["int8", "bf16", "f32"]

_KINDS: dict[str, Literal["F32", "BF16", "S8"]] = {"int8": "S8", "bf16": "BF16", "f32": "F32"}


def with_precision(builder: Builder, precision: Precision) -> tuple[Program, dict[str, Tensor]]:
    """Return the program and the tensors that are stored with it.

    Unless the precision is f32, tables of embeddings are stored in float16, which is 3 bits finer than bfloat16.
    """
    tensors: dict[str, Tensor] = {}
    matrices: dict[str, Matrix] = {}
    for name, weights in builder.matrices.items():
        kind = _KINDS[precision]
        num_outputs, num_inputs = weights.weight.shape
        matrices[name] = Matrix(kind, num_outputs, num_inputs, weights.bias is not None)
        tensors |= {f"{name}.{end}": tensor for end, tensor in _stored(kind, weights).items()}
    for name, tensor in builder.tensors.items():
        is_narrow = name in builder.tables and precision != "f32" and bool(tensor.abs().max() < _MOST_OF_FLOAT16)
        tensors[name] = (tensor.half() if is_narrow else tensor.contiguous()).clone()
    steps = [_written(step) for step in builder.steps]
    results = [Result(_written(result.place), result.value) for result in builder.results]
    return Program(builder.free, builder.buffers, matrices, builder.calls, steps, results), tensors


_MOST_OF_FLOAT16 = torch.finfo(torch.float16).max


def _stored(kind: str, weights: Weights) -> dict[str, Tensor]:
    found = {} if weights.bias is None else {"bias": weights.bias.clone()}
    if kind == "S8":
        int8 = quantise_int8(weights.weight)
        return {**found, "weight": int8.values_NK, "scale": int8.scale_N}
    dtype = torch.bfloat16 if kind == "BF16" else torch.float32
    return {**found, "weight": weights.weight.contiguous().to(dtype, copy=True)}


def _written(found: Any) -> Any:
    """Return a step, or a part of one, with the sizes as a program holds them."""
    if isinstance(found, Strided):
        return found.written
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        fields = {item.name: _written(getattr(found, item.name)) for item in dataclasses.fields(found)}
        return dataclasses.replace(found, **fields)
    if isinstance(found, tuple):
        return tuple(map(_written, found))
    return found
