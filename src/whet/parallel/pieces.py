"""Say which part of a whole tensor a process holds, and take such a part from a whole one."""

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard


class Piece(BaseModel):
    """Say where a part lies in a whole tensor: the shape of the whole, and where the part begins in each dimension."""

    model_config = ConfigDict(frozen=True)

    shape: tuple[int, ...]
    offset: tuple[int, ...]


def piece_of(tensor: DTensor) -> tuple[Tensor, Piece]:
    """Return what this process holds of a tensor, and where it lies."""
    _, offset = _place(tensor)
    return tensor.to_local(), Piece(shape=tuple(tensor.shape), offset=tuple(offset))


def is_first_copy(tensor: DTensor) -> bool:
    """Return whether no process of a lower rank holds the same part, and this one holds any."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    copies = (place for place, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate())
    return all(place == 0 for place in copies) and tensor.to_local().numel() > 0


@torch.no_grad()
def part_for(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole tensor that stands for it where `like` stands for one of the same shape.

    It has the dtype of `whole`, and lies where `like` does. What is not divided is returned as it is.
    """
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    shape, offset = _place(like)
    part = whole[tuple(slice(begin, begin + size) for begin, size in zip(offset, shape, strict=True))]
    local = torch.empty_like(like.to_local(), dtype=whole.dtype).copy_(part)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _place(tensor: DTensor) -> tuple[list[int], list[int]]:
    """Return the shape of this process's part, and where it begins.

    torch's own compute_local_shape_and_global_offset finds other places where two dimensions of a mesh divide the same
    one of a tensor, and parts are of unequal sizes.
    """
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    shape, offset = list(tensor.shape), [0] * tensor.dim()
    divided = [(dim, placement) for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    # What fully_shard divides again, after tensor parallelism, is no Shard but a _StridedShard: it comes last.
    for dim, placement in sorted(divided, key=lambda one: not isinstance(one[1], Shard)):
        axis = placement.dim  # type: ignore[attr-defined]
        chunk = -(-shape[axis] // mesh.size(dim))  # as torch.chunk divides
        begin = min(chunk * coordinate[dim], shape[axis])
        offset[axis] += begin
        shape[axis] = min(chunk, shape[axis] - begin)
    return shape, offset


@torch.no_grad()
def whole_of(tensor: Tensor) -> Tensor:
    """Return a whole tensor, on each process; all that hold parts must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    # One by one, since torch warns where two dimensions of a mesh divide the same one.
    for dim in range(len(placements)):
        placements[dim] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()
