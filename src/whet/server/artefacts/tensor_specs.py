"""The tensors that an artefact takes and returns, with the names and types by which clients know them.

The types are those of the Open Inference Protocol: kserve.github.io, "Open Inference Protocol (V2)"; BF16 is Triton's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.pytree import PyTree
from whet.core.signature import Signature
from whet.errors import TargetError

DATATYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_TORCH = {str(dtype).removeprefix("torch."): dtype for dtype in _NAMES}


@dataclass(frozen=True)
class TensorSpec:
    """Describe one tensor. A free dimension's size is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]

    @property
    def datatype(self) -> str:
        return datatype_of(self.dtype)

    @property
    def sizes(self) -> list[int]:
        """The shape as the protocol writes it: -1 for a free dimension."""
        return [-1 if size is None else size for size in self.shape]

    def takes(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(
            want is None or want == size for want, size in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.datatype} {self.sizes}"


def datatype_of(dtype: torch.dtype) -> str:
    """Return a type's name in the protocol."""
    return _NAMES[dtype]


def input_specs(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return what a model takes, in order. A positional tensor is called input_0, input_1, ... by its place.

    Raises:
        TargetError: It takes numbers of a type that the protocol does not have.
    """
    return tuple(
        TensorSpec(argument.name or f"input_{place}", _known(argument.dtype, "takes"), argument.shape)
        for place, argument in enumerate(signature.inputs)
    )


def output_names(signature: Signature) -> list[str]:
    """Return the names of a model's output tensors in order: the keys of a dict, and output_0 and so on by place."""
    return list(_names(signature.output, ""))


def output_spec(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> TensorSpec:
    """Return the spec of an output that a model has returned.

    Raises:
        TargetError: Its numbers are of a type that the protocol does not have.
    """
    return TensorSpec(name, _known(str(tensor.dtype).removeprefix("torch."), "returns"), shape)


def _names(structure: PyTree, path: str) -> Iterator[str]:
    if structure.kind == "tensor":
        yield path or "output_0"
        return
    for place, item in enumerate(structure.items):
        key = structure.keys[place] if structure.keys else (f"output_{place}" if not path else str(place))
        yield from _names(item, f"{path}.{key}" if path else key)


def _known(dtype: str, does: str) -> torch.dtype:
    if dtype not in _TORCH:
        raise TargetError(
            f"the model {does} {dtype}, which the Open Inference Protocol has no type for: tune a model that "
            "converts it"
        )
    return _TORCH[dtype]
