"""Clip gradients by the norm over everything that all processes hold."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor


def clip_gradients(parameters: Iterable[torch.nn.Parameter], max_norm: float, stages: Any = None) -> Tensor:
    """Scale gradients so that their norm is at most `max_norm`, and return the norm that they had, on each process.

    A gradient that several processes hold parts of counts once, and so does one of which each holds a copy.

    Args:
        parameters: Those of this process, each once.
        stages: The group of the processes that hold other layers; None where one process holds all layers.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = gradient_norm(gradients, stages)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # as torch's clip_grad_norm_ does
    local = [local_of(gradient) for gradient in gradients]
    for device in {one.device for one in local}:
        torch._foreach_mul_([one for one in local if one.device == device], factor.to(device))
    return norm


@torch.no_grad()
def gradient_norm(gradients: Iterable[Tensor], stages: Any = None) -> Tensor:
    """Return the norm of all gradients together, in float32 or more, a tensor of one element; see clip_gradients."""
    by_groups: defaultdict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    device = torch.device("cpu")
    for gradient in gradients:
        held = local_of(gradient)
        device = held.device
        by_groups[_sharing(gradient)].append(held)
    total = torch.zeros((), dtype=torch.float32, device=device)
    for groups, local in by_groups.items():
        norms = torch.stack(
            [norm.to(torch.promote_types(norm.dtype, total.dtype)) for norm in torch._foreach_norm(local)]
        )
        squares = norms.square().sum()
        for group in groups:
            distributed.all_reduce(squares, group=group)
        total = total + squares
    if stages is not None:
        distributed.all_reduce(total, group=stages)
    return total.sqrt()


def local_of(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _sharing(gradient: Tensor) -> tuple[Any, ...]:
    """Return the groups of processes that hold other parts of a gradient."""
    if not isinstance(gradient, DTensor):
        return ()
    mesh = gradient.device_mesh
    # Not is_shard(): that is false where data-parallel processes share a part of what tensor-parallel ones share.
    divided = (dim for dim, placement in enumerate(gradient.placements) if not placement.is_replicate())
    return tuple(mesh.get_group(dim) for dim in divided)
