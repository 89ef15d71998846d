"""Say which parts of a linear layer's matrices the processes of a grid hold, and refuse sizes that do not divide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from whet.errors import OptionError

ROWS, COLUMNS, COPIES = Shard(0), Shard(-1), Replicate()

Placements = tuple[Placement, ...]
"""Say for each dimension of a mesh whether it divides a tensor's first dimension, its last one, or none."""


@dataclass(frozen=True)
class Layout:
    """Say how a grid divides what a linear layer works on: X [..., k], W [n, k], b [n] and Y [..., n]."""

    input: Placements
    weight: Placements
    bias: Placements
    output: Placements


def shape_of(mesh: DeviceMesh) -> str:
    """Return the sizes of a mesh as text, as "2 x 2"."""
    return " x ".join(map(str, mesh.shape))


def fitted(placements: Placements, ndim: int) -> Placements:
    """Return placements with the number of the last dimension of a tensor, as a DTensor's own placements have it."""
    return tuple(Shard(ndim - 1) if placement == COLUMNS else placement for placement in placements)


def num_parts(mesh: DeviceMesh, placements: Placements, dim: int) -> int:
    """Return into how many parts a dimension is divided."""
    return math.prod(mesh.size(axis) for axis, placement in enumerate(placements) if placement == Shard(dim))


def refuse_uneven(
    shape: Sequence[int], names: Mapping[int, str], mesh: DeviceMesh, placements: Placements, who: str
) -> None:
    """Refuse a tensor's shape where the processes would hold parts of different sizes.

    Args:
        names: What the dimensions are called in the message.

    Raises:
        OptionError: A size is not a multiple of the number of its parts.
    """
    for dim, name in names.items():
        parts = num_parts(mesh, placements, dim)
        if shape[dim] % parts:
            raise OptionError(
                f"{who} on a grid of {shape_of(mesh)} processes divides {name} into {parts} equal parts, and there are "
                f"{shape[dim]}; choose a multiple of {parts}, or another grid"
            )


def divided(whole: Tensor, names: Mapping[int, str], mesh: DeviceMesh, placements: Placements, who: str) -> DTensor:
    """Return a tensor, which each process has as a whole, divided among them; nothing is sent.

    Raises:
        OptionError: The grid does not divide its sizes, or it is a DTensor already.
    """
    if isinstance(whole, DTensor):
        raise OptionError(f"{who} divides a whole tensor, and got a DTensor; give it what full_tensor() returns")
    refuse_uneven(whole.shape, names, mesh, placements, who)
    return distribute_tensor(whole, mesh, fitted(placements, whole.ndim), src_data_rank=None)


def local_part(tensor: DTensor, names: Mapping[int, str], mesh: DeviceMesh, placements: Placements, who: str) -> Tensor:
    """Return what this process holds of a tensor that is divided as asked.

    Raises:
        OptionError: It is divided otherwise.
    """
    there = fitted(placements, tensor.ndim)
    if tensor.device_mesh != mesh or tuple(tensor.placements) != there:
        raise OptionError(
            f"{who} takes a DTensor with the placements {there} on its grid of {shape_of(mesh)} processes, and got "
            f"{tuple(tensor.placements)} on {shape_of(tensor.device_mesh)}; give it these placements with "
            "DTensor.redistribute, or pass a whole tensor through distribute_input"
        )
    refuse_uneven(tensor.shape, names, mesh, placements, who)
    return tensor.to_local()


def parameter_of(whole: Tensor, mesh: DeviceMesh, placements: Placements) -> torch.nn.Parameter:
    """Return a parameter divided among the processes, from what the first one of the grid has."""
    there = fitted(placements, whole.ndim)
    return torch.nn.Parameter(distribute_tensor(whole.detach(), mesh, there), requires_grad=whole.requires_grad)
