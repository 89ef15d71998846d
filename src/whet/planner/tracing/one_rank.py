"""Stand for one rank of however many: its place in the mesh, and groups in which nobody else is."""

import contextlib
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from whet.errors import OptionError
from whet.parallel.division import Division
from whet.parallel.plan import ParallelPlan, degrees_of
from whet.parallel.ranks import Ranks


class OneRank(Division):
    """Divide a model as one rank of many does, where only this one is there.

    It makes the groups that this rank is in. A mesh of torch's own makes those of all ranks, which takes minutes.
    """

    @cached_property
    def mesh(self) -> DeviceMesh:
        sizes = self.degrees.sizes
        ranks = torch.arange(self.ranks.world_size, dtype=torch.int).view(tuple(sizes.values()))
        place = [int(one) for one in (ranks == self.ranks.rank).nonzero()[0]]
        groups = []
        for dimension in range(ranks.dim()):
            line = ranks[tuple(slice(None) if i == dimension else at for i, at in enumerate(place))]
            groups.append(distributed.new_group(line.tolist()))
        return DeviceMesh.from_group(groups, "cpu", ranks, mesh_dim_names=tuple(sizes))

    @cached_property
    def data_group(self) -> Any:
        [own] = [peers for peers in self.data_peers if self.ranks.rank in peers]
        return distributed.new_group(own)

    def called(self, model: nn.Module) -> nn.Module:
        is_plain = self.shards_data or self.degrees.data == 1 or not self.sums_in_backward
        return model if is_plain else Copies(model)

    def summed_later(self, model: nn.Module) -> AbstractContextManager[None]:
        return model.no_sync() if isinstance(model, Copies) else contextlib.nullcontext()


class Copies(nn.Module):
    """Hold gradients as DDP does that keeps them in its buckets: for all parameters, from the first step on.

    DDP itself reads the numbers of tensors as it starts.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._sums = module, True
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(partial(self._sum, torch.empty_like(p)))

    def forward(self, *given: Any) -> Any:
        return self.module(*given)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of the block outside of the buckets."""
        self._sums = False
        try:
            yield
        finally:
            self._sums = True

    def _sum(self, bucket: Tensor, parameter: Tensor) -> None:
        if self._sums and parameter.grad is not bucket:
            assert parameter.grad is not None
            bucket.copy_(parameter.grad)
            parameter.grad = bucket


def check_alone() -> None:
    """Raise OptionError where this process trains with others: it cannot stand for another rank meanwhile."""
    if distributed.is_initialized():
        raise OptionError("a trace of one rank needs a process that trains with no others; call whet.plan in its own")


@contextlib.contextmanager
def one_rank(plan: ParallelPlan, world_size: int) -> Iterator[OneRank]:
    """Make this process stand for the first of so many ranks for the block.

    The first rank of those that share a tensor holds most of it, where it does not divide evenly.

    Raises:
        OptionError: The plan does not divide the ranks.
    """
    degrees = degrees_of(plan, world_size)
    rank = 0
    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        division = OneRank(plan, Ranks(rank, world_size), degrees)
        if world_size > 1:
            _ = division.mesh, division.stream, division.data_group  # made of numbers, so not among tensors without
        yield division
    finally:
        distributed.destroy_process_group()


@contextlib.contextmanager
def without_numbers() -> Iterator[None]:
    """Make all tensors of the block without numbers: only their shapes are computed."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # what is freed when must be the same in each step
    joined = DeviceMesh._concatenate
    # FSDP joins the mesh of its groups with that of divided matrices, and a mesh looks for its rank in numbers.
    DeviceMesh._concatenate = staticmethod(unset_fake_temporarily()(joined))  # type: ignore[method-assign]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        DeviceMesh._concatenate = staticmethod(joined)  # type: ignore[method-assign]
        if was_enabled:
            gc.enable()
        gc.collect()
