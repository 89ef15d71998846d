"""Hold a weight matrix in the order in which the kernels read it (weights.h defines it)."""

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.linear import layout
from whet.kernels.linear.layout import LANES, PADDING, Kind
from whet.kernels.linear.places import PRIVATE, Place, large_pages
from whet.kernels.linear.quantise import Int8Weights, quantise_int4, quantise_int8

__all__ = ["LANES", "Kind", "PackedMatrix", "PackedWeights", "WeightsStruct", "large_pages"]

_ROWS_AT_ONCE = 2048  # quantised and packed together: bounds the memory beside the weights themselves
_DTYPE = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16}


class WeightsStruct(ctypes.Structure):
    """Mirror the C structure whet::Weights."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("num_strips", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


@dataclass(eq=False)
class PackedMatrix:
    """Hold a packed matrix, [N outputs, K inputs]. The torch operators take its tensors, and the kernels its `struct`.

    Attributes:
        data: The packed weights, uint8 [bytes].
        scale: The outputs' scales, float32 [N padded to 16]; ones unless the kind is S8 or S4.
        bias: The outputs' bias, float32 [N padded to 16], or None.
    """

    kind: Kind
    num_outputs: int
    num_inputs: int
    data: Tensor
    scale: Tensor
    bias: Tensor | None

    @cached_property
    def struct(self) -> WeightsStruct:
        """Return the structure that the kernels take. It points into the tensors."""
        return WeightsStruct(
            self.kind,
            len(self.scale) // LANES,
            layout.padded_inputs(self.kind, self.num_inputs),
            self.data.data_ptr(),
            self.scale.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )

    @property
    def num_bytes(self) -> int:
        return layout.packed_bytes(self.kind, self.num_outputs, self.num_inputs)

    def row_bytes(self) -> int:
        """Return the bytes of one row of activations, prepared for the matrix."""
        return layout.row_bytes(self.kind, self.num_inputs)

    def dequantised(self) -> Tensor:
        """Return the weights that the kernels multiply with, float32 [N, K]."""
        weight_NK = layout.unpack(self.kind, self.data, self.num_outputs, self.num_inputs)
        return weight_NK * self.scale[: self.num_outputs, None]

    def check(self) -> None:
        """Raise InputsError unless the tensors are of this kind and size. A kernel would read beyond wrong ones."""
        if self.data.dtype != torch.uint8 or self.data.numel() != self.num_bytes or not self.data.is_contiguous():
            raise InputsError(
                f"weights of kind {self.kind.name} with {self.num_outputs} outputs, for {self.num_inputs} inputs, are "
                f"{self.num_bytes} bytes in uint8; these are {self.data.numel()} elements in {self.data.dtype}"
            )
        lanes = layout.num_strips(self.num_outputs) * LANES
        for name, tensor in (("scale", self.scale), ("bias", self.bias)):
            if tensor is None:
                continue
            if tensor.dtype != torch.float32 or tensor.shape != (lanes,) or not tensor.is_contiguous():
                raise InputsError(
                    f"the {name} of packed weights with {self.num_outputs} outputs is float32 [{lanes}], "
                    f"not {tensor.dtype} {list(tensor.shape)}"
                )


class PackedWeights(PackedMatrix):
    """Pack a matrix [N outputs, K inputs] into memory of a place. Without a library, torch packs it.

    Weights that are int8 already keep their values and scales; others are rounded to the kind.

    Raises:
        MachineError: There is not enough memory.
    """

    def __init__(
        self,
        library: Library | None,
        kind: Kind,
        weight_NK: Tensor | Int8Weights,
        bias_N: Tensor | None = None,
        place: Place = PRIVATE,
    ) -> None:
        N, K = (weight_NK.values_NK if isinstance(weight_NK, Int8Weights) else weight_NK).shape
        data = place.take(layout.packed_bytes(kind, N, K), is_matrix=True)
        of_lanes = 4 * layout.num_strips(N) * LANES
        scale = place.take(of_lanes).view(torch.float32)
        bias = None if bias_N is None else place.take(of_lanes).view(torch.float32)
        super().__init__(kind, N, K, data, scale, bias)
        if not place.wants_values:
            return
        data.fill_(PADDING[kind])
        scale.fill_(1.0)
        if bias is not None and bias_N is not None:
            bias.zero_()[:N] = bias_N
        for first in range(0, N, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            if isinstance(weight_NK, Int8Weights):
                self._pack(library, first, Int8Weights(weight_NK.values_NK[rows], weight_NK.scale_N[rows]))
            else:
                self._pack(library, first, weight_NK[rows])

    def _pack(self, library: Library | None, first: int, part_NK: Tensor | Int8Weights) -> None:
        ratios = None
        if isinstance(part_NK, Int8Weights) or self.kind is Kind.S8:
            int8 = part_NK if isinstance(part_NK, Int8Weights) else quantise_int8(part_NK)
            values, scale_N = int8.values_NK, int8.scale_N
        elif self.kind is Kind.S4:
            int4 = quantise_int4(part_NK)
            values, scale_N, ratios = int4.values_NK, int4.scale_N, int4.ratio_NG.contiguous()
        else:
            values, scale_N = part_NK.to(_DTYPE[self.kind]), torch.ones(len(part_NK))
        values = values.contiguous()
        self.scale[first : first + len(values)] = scale_N
        if library is None:
            packed = layout.pack(self.kind, values, ratios)
            start = layout.packed_bytes(self.kind, first, self.num_inputs)  # parts begin at whole panels
            self.data[start : start + len(packed)] = packed
            return
        given = (values.data_ptr(), None if ratios is None else ratios.data_ptr())
        library.functions.whet_pack(ctypes.byref(self.struct), first, len(values), self.num_inputs, *given)
