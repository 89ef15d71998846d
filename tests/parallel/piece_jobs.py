"""What processes do in the tests of pieces: take tensors apart that two dimensions of a mesh divide, and join them."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from whet.parallel.pieces import is_first_copy, part_for, piece_of, whole_of
from whet.parallel.ranks import Ranks

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "copies": Replicate()}


def whole(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)


def taken_apart(ranks: Ranks, sizes: tuple[int, int, int], shapes: list[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Return what a process holds of tensors that tensor parallelism divides first, and then fully_shard.

    Args:
        sizes: How many processes replicate, shard, and divide matrices.
    """
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard", "tensor"))
    model = nn.ParameterDict()
    for rows, columns in shapes:
        for name, placement in PLACEMENTS.items():
            made = distribute_tensor(whole(rows, columns), mesh["tensor"], [placement])
            model[f"{name}_{rows}_{columns}"] = nn.Parameter(made)
    fully_shard(model, mesh=mesh["replicate", "shard"] if sizes[0] > 1 else mesh["shard"])
    found = {}
    for name, held in model.items():
        assert isinstance(held, DTensor)
        given = whole(*map(int, name.split("_")[1:]))
        local, piece = piece_of(held.detach())
        found[name] = {
            "local": local.tolist(),
            "offset": piece.offset,
            "is_first_copy": is_first_copy(held),
            "taken": part_for(given, held).to_local().tolist(),  # type: ignore[attr-defined]
            "is_whole": torch.equal(whole_of(held.detach()), given),
            "is_joined": torch.equal(whole_of(part_for(given, held)), given),
        }
    return found
