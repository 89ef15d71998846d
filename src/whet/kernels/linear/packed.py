"""A weight matrix in the order in which the kernels read it (weights.h says which)."""

import ctypes
import weakref
from collections.abc import Iterator
from enum import IntEnum

import torch
from torch import Tensor

from whet.errors import MachineError
from whet.kernels.build import Library
from whet.kernels.linear.quantise import GROUP_SIZE, quantise_int4, quantise_int8

LANES = 16
_ROWS_AT_ONCE = 2048  # quantised and packed together: bounds the memory beside the weights themselves


class Kind(IntEnum):
    """How weights are kept; the numbers are those of weights.h."""

    F32 = 0
    BF16 = 1
    S8 = 2
    S4 = 3


_STEP = {Kind.F32: 1, Kind.BF16: 2, Kind.S8: 4, Kind.S4: GROUP_SIZE}
_DTYPE = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16}


class WeightsStruct(ctypes.Structure):
    """whet::Weights."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("num_strips", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class PackedWeights:
    """[N outputs, K inputs], packed. `struct` goes to the kernels; it is good as long as this object lives."""

    def __init__(self, library: Library, kind: Kind, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        self.kind = kind
        self.num_outputs, self.num_inputs = weight_NK.shape
        self._library = library
        num_strips = -(-self.num_outputs // LANES)
        step = _STEP[kind]
        self._scale = torch.ones(num_strips * LANES)
        self._bias = None if bias_N is None else torch.zeros(num_strips * LANES)
        if self._bias is not None and bias_N is not None:
            self._bias[: self.num_outputs] = bias_N.float()
        self.struct = WeightsStruct(kind, num_strips, -(-self.num_inputs // step) * step)
        self.struct.scale = self._scale.data_ptr()
        self.struct.bias = None if self._bias is None else self._bias.data_ptr()
        self.num_bytes = _weight_bytes(library, self.struct)
        self.struct.data = allocate(self, library, self.num_bytes, fill=_PADDING[kind])
        for first, part_NK in _parts(weight_NK):
            self._pack(first, part_NK)

    def _pack(self, first: int, part_NK: Tensor) -> None:
        ratios = None
        if self.kind is Kind.S8:
            int8 = quantise_int8(part_NK)
            values, scale_N = int8.values_NK, int8.scale_N
        elif self.kind is Kind.S4:
            int4 = quantise_int4(part_NK)
            values, scale_N, ratios = int4.values_NK, int4.scale_N, int4.ratio_NG.contiguous()
        else:
            values, scale_N = part_NK.to(_DTYPE[self.kind]), torch.ones(len(part_NK))
        values = values.contiguous()
        self._scale[first : first + len(part_NK)] = scale_N
        self._library.functions.whet_pack(
            ctypes.byref(self.struct),
            ctypes.c_int32(first),
            ctypes.c_int32(len(part_NK)),
            ctypes.c_int32(self.num_inputs),
            ctypes.c_void_p(values.data_ptr()),
            ctypes.c_void_p(None if ratios is None else ratios.data_ptr()),
        )

    def row_bytes(self) -> int:
        """Bytes that one row of activations takes, made ready."""
        function = self._library.functions.whet_row_bytes
        function.restype = ctypes.c_size_t
        return int(function(self.struct.kind, self.struct.k))


_PADDING = {Kind.F32: 0, Kind.BF16: 0, Kind.S8: 128, Kind.S4: 0x88}


def _parts(weight_NK: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(weight_NK), _ROWS_AT_ONCE):
        yield first, weight_NK[first : first + _ROWS_AT_ONCE]


def _weight_bytes(library: Library, struct: WeightsStruct) -> int:
    function = library.functions.whet_weight_bytes
    function.restype = ctypes.c_size_t
    return int(function(ctypes.byref(struct)))


def allocate(owner: object, library: Library, num_bytes: int, fill: int) -> int:
    """Memory in large pages, freed with its owner."""
    functions = library.functions
    functions.whet_allocate.restype = ctypes.c_void_p
    functions.whet_allocate.argtypes = (ctypes.c_size_t,)
    functions.whet_free.argtypes = (ctypes.c_void_p,)
    memory = functions.whet_allocate(num_bytes)
    if not memory:
        raise MachineError(f"no memory for {num_bytes / 2**20:.0f} MiB of weights")
    weakref.finalize(owner, functions.whet_free, memory)
    ctypes.memset(memory, fill, num_bytes)
    return int(memory)
