"""Hold a weight matrix in the order in which the kernels read it (weights.h defines it)."""

import contextlib
import ctypes
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

from whet.errors import MachineError
from whet.kernels.build import Library
from whet.kernels.linear import layout
from whet.kernels.linear.layout import LANES, PADDING, Kind
from whet.kernels.linear.quantise import quantise_int4, quantise_int8

__all__ = ["LANES", "Kind", "PackedWeights", "WeightsStruct", "large_pages"]

_ROWS_AT_ONCE = 2048  # quantised and packed together: bounds the memory beside the weights themselves
_HUGE_PAGE = 2 * 2**20
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


class PackedWeights:
    """Pack a matrix [N outputs, K inputs]. Without a library, torch packs it.

    The torch operators take `data`, `scale` and `bias`. The kernels take `struct`, which is valid as long as this
    object lives.

    Attributes:
        data: The packed weights, uint8 [bytes].
        scale: The outputs' scales, float32 [N padded to 16]; ones unless the kind is S8 or S4.
        bias: The outputs' bias, float32 [N padded to 16], or None.

    Raises:
        MachineError: There is not enough memory.
    """

    def __init__(self, library: Library | None, kind: Kind, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        self.kind = kind
        self.num_outputs, self.num_inputs = weight_NK.shape
        self._library = library
        strips = layout.num_strips(self.num_outputs)
        self.scale = torch.ones(strips * LANES)
        self.bias = None if bias_N is None else torch.zeros(strips * LANES)
        if self.bias is not None and bias_N is not None:
            self.bias[: self.num_outputs] = bias_N.float()
        self.num_bytes = layout.packed_bytes(kind, self.num_outputs, self.num_inputs)
        self.data = large_pages(self.num_bytes).fill_(PADDING[kind])
        self.struct = weights_struct(kind, self.num_inputs, self.data, self.scale, self.bias)
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
        self.scale[first : first + len(part_NK)] = scale_N
        if self._library is None:
            packed = layout.pack(self.kind, values, ratios)
            start = layout.packed_bytes(self.kind, first, self.num_inputs)  # parts begin at whole panels
            self.data[start : start + len(packed)] = packed
            return
        self._library.functions.whet_pack(
            ctypes.byref(self.struct),
            ctypes.c_int32(first),
            ctypes.c_int32(len(part_NK)),
            ctypes.c_int32(self.num_inputs),
            ctypes.c_void_p(values.data_ptr()),
            ctypes.c_void_p(None if ratios is None else ratios.data_ptr()),
        )

    def row_bytes(self) -> int:
        """Return the bytes of one row of activations, prepared for the matrix."""
        return layout.row_bytes(self.kind, self.num_inputs)


def weights_struct(kind: Kind, num_inputs: int, data: Tensor, scale: Tensor, bias: Tensor | None) -> WeightsStruct:
    """Return the structure that the kernels take. It points into the tensors."""
    return WeightsStruct(
        kind,
        len(scale) // LANES,
        layout.padded_inputs(kind, num_inputs),
        data.data_ptr(),
        scale.data_ptr(),
        None if bias is None else bias.data_ptr(),
    )


def large_pages(num_bytes: int) -> Tensor:
    """Allocate uint8 [num_bytes], aligned to 2 MiB and in pages of that size where the system has them.

    Large pages are worth 10 % of bandwidth.

    Raises:
        MachineError: There is not enough memory.
    """
    size = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
    try:
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MachineError(f"no memory for {num_bytes / 2**20:.0f} MiB of weights") from error
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # the tensor keeps the mapping
    start = -whole.data_ptr() % _HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, start, size)
    return whole[start : start + num_bytes]


def _parts(weight_NK: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(weight_NK), _ROWS_AT_ONCE):
        yield first, weight_NK[first : first + _ROWS_AT_ONCE]
