"""Say how the processes that share matrices hold the stream of a decoder, within a stage of a pipeline and between two.

Within a stage it is a DTensor, which knows the whole shape. Between stages it is a plain tensor, of what this process
holds. With sequence parallelism these are its tokens alone, and so a stage sends no more than it holds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

TOKENS = Shard(1)  # the dimension of [B, T, D]
WHOLE = Replicate()


@dataclass(frozen=True)
class Stream:
    """Hold a stream [B, T, D] on each of several processes, or on one.

    Attributes:
        mesh: The processes that share the matrices, in one dimension; None where each has whole ones.
        placement: TOKENS where they share the tokens too, and WHOLE where each holds all.
    """

    mesh: DeviceMesh | None = None
    placement: Placement = WHOLE

    def num_held(self, length: int) -> int:
        """Return how many tokens of a row of so many this process holds."""
        if self.mesh is None or self.placement != TOKENS:
            return length
        size, _ = Shard.local_shard_size_and_offset(length, self.mesh.size(), self.mesh.get_local_rank())
        return int(size)

    def entering(self, held_BTD: Tensor, length: int) -> Tensor:
        """Return the stream of rows of so many tokens, given what this process holds of it."""
        if self.mesh is None:
            return held_BTD
        B, _, D = held_BTD.shape
        shape, stride = torch.Size((B, length, D)), (length * D, D, 1)
        return DTensor.from_local(held_BTD, self.mesh, [self.placement], run_check=False, shape=shape, stride=stride)

    def leaving(self, x_BTD: Tensor) -> Tensor:
        """Return what this process holds of a stream; see entering."""
        return held(x_BTD) if isinstance(x_BTD, DTensor) else x_BTD


def held(x: DTensor) -> Tensor:
    """Return what this process holds of a DTensor. Its gradient lies on processes as x does.

    It is no view, as that of to_local: FSDP warns of views, and pipelines cannot detach them.
    """
    found: Tensor = _Held.apply(x)  # type: ignore[no-untyped-call]
    return found


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DTensor) -> Tensor:
        ctx.mesh, ctx.placements, ctx.shape, ctx.stride = x.device_mesh, x.placements, x.shape, x.stride()
        return x.to_local().detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> DTensor:
        return DTensor.from_local(
            gradient, ctx.mesh, ctx.placements, run_check=False, shape=ctx.shape, stride=ctx.stride
        )
