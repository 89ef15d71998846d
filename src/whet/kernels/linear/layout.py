"""Write and read, in torch, the order in which the kernels read a weight matrix (weights.h says why).

Shape suffixes: N outputs, K inputs, G groups of 32 inputs, P panels, S strips of a panel, L lanes, B bytes.
"""

from enum import IntEnum

import torch
from torch import Tensor

from whet.kernels.linear.quantise import GROUP_SIZE

LANES = 16
_STRIPS = 4


class Kind(IntEnum):
    """Name how weights are stored. The numbers are those of weights.h."""

    F32 = 0
    BF16 = 1
    S8 = 2
    S4 = 3


PADDING = {Kind.F32: 0, Kind.BF16: 0, Kind.S8: 128, Kind.S4: 0x88}  # of a byte
_STEP = {Kind.F32: 1, Kind.BF16: 2, Kind.S8: 4, Kind.S4: GROUP_SIZE}
_DTYPE = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16, Kind.S8: torch.uint8}
_INPUTS_BYTES = 4 * LANES  # of a strip's step


def num_strips(num_outputs: int) -> int:
    """Return the number of strips of 16 outputs."""
    return -(-num_outputs // LANES)


def padded_inputs(kind: Kind, num_inputs: int) -> int:
    return -(-num_inputs // _STEP[kind]) * _STEP[kind]


def packed_bytes(kind: Kind, num_outputs: int, num_inputs: int) -> int:
    return num_strips(num_outputs) * _strip_bytes(kind, padded_inputs(kind, num_inputs))


def row_bytes(kind: Kind, num_inputs: int) -> int:
    """Return the bytes of one row of activations, prepared for the matrix."""
    element_bytes = {Kind.F32: 4, Kind.BF16: 2}.get(kind, 1)
    return -(-padded_inputs(kind, num_inputs) * element_bytes // 64) * 64


def pack(kind: Kind, values_NK: Tensor, ratio_NG: Tensor | None = None) -> Tensor:
    """Pack a matrix, and return it as uint8 [packed_bytes].

    Args:
        values_NK: The weights: float32, bf16 or int8, as the kind says.
        ratio_NG: The groups' factors, uint8, for S4.
    """
    N, K = values_NK.shape
    strips, padded = num_strips(N), padded_inputs(kind, K)
    if kind in (Kind.S8, Kind.S4):
        values_NK = (values_NK.to(torch.int16) + (128 if kind is Kind.S8 else 8)).to(torch.uint8)
    rest = {Kind.S8: 128, Kind.S4: 8}.get(kind, 0)
    values_NK = torch.nn.functional.pad(values_NK, (0, padded - K, 0, strips * LANES - N), value=rest)
    if ratio_NG is not None:
        ratio_NG = torch.nn.functional.pad(ratio_NG, (0, 0, 0, strips * LANES - N), value=PADDING[kind])
    parts = [
        _pack_panels(kind, width, values_NK[rows], None if ratio_NG is None else ratio_NG[rows])
        for width, rows in _same_width(strips)
    ]
    return torch.cat([part.flatten() for part in parts])


def unpack(kind: Kind, packed_B: Tensor, num_outputs: int, num_inputs: int) -> Tensor:
    """Return packed weights as float32 [N, K], without the outputs' scales, and for S4 with the groups' factors."""
    strips, padded = num_strips(num_outputs), padded_inputs(kind, num_inputs)
    strip_bytes = _strip_bytes(kind, padded)
    parts = []
    for width, rows in _same_width(strips):
        first, last = rows.start // LANES, rows.stop // LANES
        part_B = packed_B[first * strip_bytes : last * strip_bytes]
        parts.append(_unpack_panels(kind, width, padded, part_B))
    return torch.cat(parts)[:num_outputs, :num_inputs]


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Join gate and up, both [N] or [N, K]: 16 outputs of the gate, the same 16 of up, and so on.

    Returns:
        [2 N padded, ...], where zeros have padded N to a multiple of 16.
    """
    both = torch.stack((gate, up))
    rest = both.new_zeros(2, -both.shape[1] % LANES, *both.shape[2:])
    mixed: Tensor = torch.cat((both, rest), dim=1).unflatten(1, (-1, LANES)).transpose(0, 1).flatten(0, 2)
    return mixed.contiguous()


def _strip_bytes(kind: Kind, padded: int) -> int:
    if kind is Kind.S4:
        return padded // 2 * LANES + padded // GROUP_SIZE * LANES
    return padded // _STEP[kind] * _INPUTS_BYTES


def _same_width(strips: int) -> list[tuple[int, slice]]:
    """Return a panel's number of strips with the outputs of all such panels: the whole panels, then the last one."""
    whole = strips // _STRIPS * _STRIPS
    widths = [(_STRIPS, slice(0, whole * LANES)), (strips - whole, slice(whole * LANES, strips * LANES))]
    return [(width, rows) for width, rows in widths if width and rows.stop > rows.start]


def _pack_panels(kind: Kind, width: int, values_NK: Tensor, ratio_NG: Tensor | None) -> Tensor:
    packed: Tensor
    if kind is not Kind.S4:
        packed = values_NK.unflatten(1, (-1, _STEP[kind])).unflatten(0, (-1, width, LANES)).permute(0, 3, 1, 2, 4)
        return packed.contiguous().view(torch.uint8)
    assert ratio_NG is not None
    # Of each 8 inputs the first four are low nibbles, the others high.
    nibbles = values_NK.unflatten(1, (-1, 4, 2, 4))
    bytes_ = nibbles[:, :, :, 0] | (nibbles[:, :, :, 1] << 4)
    data = bytes_.unflatten(0, (-1, width, LANES)).permute(0, 3, 4, 1, 2, 5).flatten(2)
    ratios = ratio_NG.unflatten(0, (-1, width, LANES)).permute(0, 3, 1, 2).flatten(2)
    return torch.cat((ratios, data), dim=2)


def _unpack_panels(kind: Kind, width: int, padded: int, part_B: Tensor) -> Tensor:
    if kind is not Kind.S4:
        values = part_B.view(_DTYPE[kind]).view(-1, padded // _STEP[kind], width, LANES, _STEP[kind])
        values_NK = values.permute(0, 2, 3, 1, 4).reshape(-1, padded).to(torch.float32)
        return values_NK - 128 if kind is Kind.S8 else values_NK
    groups = part_B.view(-1, padded // GROUP_SIZE, width * LANES * (1 + GROUP_SIZE // 2))
    ratio_NG = groups[:, :, : width * LANES].unflatten(2, (width, LANES)).permute(0, 2, 3, 1).flatten(0, 2)
    bytes_ = groups[:, :, width * LANES :].unflatten(2, (4, width, LANES, 4)).permute(0, 3, 4, 1, 2, 5).flatten(0, 2)
    values_NK = torch.stack((bytes_ & 15, bytes_ >> 4), dim=3).flatten(1).to(torch.float32) - 8
    values_NK *= ratio_NG.repeat_interleave(GROUP_SIZE, dim=1)
    return values_NK
