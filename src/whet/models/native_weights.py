"""Pack the weights of a model for whet's kernels, and keep the memory that its structures point to.

Shape suffixes: O outputs, I inputs, V vocabulary, D model width.
"""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.linear.packed import Kind, PackedWeights
from whet.kernels.linear.places import PRIVATE, Place

Tensors = Callable[[str], Tensor | None]
"""Returns a tensor of a layer by name, or None."""


def weight_and_bias(of: Tensors, name: str) -> tuple[Tensor, Tensor | None]:
    weight = of(f"{name}.weight")
    assert weight is not None
    return weight, of(f"{name}.bias")


class NativeWeights:
    """Hold what the structures of a native model point to, for as long as the model lives. It lies in a place."""

    def __init__(self, library: Library, kind: Kind, place: Place = PRIVATE) -> None:
        self._library, self._kind, self._place = library, kind, place
        self._matrices: list[PackedWeights] = []
        self._tensors: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        return sum(packed.num_bytes for packed in self._matrices)

    def prepared(self, make: Callable[[], Tensor], *shape: int) -> Tensor:
        """Return what `make` returns, of this shape; only an outline of it if its values are not wanted."""
        return self._place.prepared(make, *shape)

    def noted(self, name: str, compute: Callable[[], str]) -> str:
        """Return what is known of the weights by this name. `compute` needs their values."""
        return self._place.noted(name, compute)

    def packed(self, weight_OI: Tensor, bias_O: Tensor | None) -> ctypes.Structure:
        """Pack a matrix, and return the structure that describes it."""
        packed = PackedWeights(self._library, self._kind, weight_OI, bias_O, self._place)
        self._matrices.append(packed)
        return packed.struct

    def linear(self, of: Tensors, name: str) -> ctypes.Structure:
        return self.packed(*weight_and_bias(of, name))

    def floats(self, tensor: Tensor | None) -> int | None:
        """Copy a tensor in float32, and return its address; None for None."""
        return None if tensor is None else self._copied(tensor, torch.float32)

    def put_ends(self, struct: Any, weights: Mapping[str, Tensor], embedding: str, norm: str) -> None:
        """Put the embedding, the final norm and the head into a model's structure. An embedding in bf16 stays so.

        `embedding` and `norm` are names of weights. Without `lm_head.weight`, the head's weight is the embedding's.
        A share of a model may have no embedding.
        """
        struct.final_norm = self.floats(weights[norm])
        if (embedding_VD := weights.get(embedding)) is not None:
            struct.embedding_is_bf16 = embedding_VD.dtype == torch.bfloat16
            struct.embedding = self._copied(embedding_VD, torch.bfloat16 if struct.embedding_is_bf16 else torch.float32)
        struct.head = self.packed(weights["lm_head.weight" if "lm_head.weight" in weights else embedding], None)

    def _copied(self, tensor: Tensor, dtype: torch.dtype) -> int:
        kept = self._place.keep(tensor, dtype)
        self._tensors.append(kept)
        return kept.data_ptr()
