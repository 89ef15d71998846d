"""Divide a model among processes as a plan says: meshes, shards, wrappers, and the optimiser of a part."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from whet.core.workload.blocks import blocks_of
from whet.errors import OptionError
from whet.parallel.clipping import clip_gradients
from whet.parallel.compression import compress
from whet.parallel.machine_sums import machine_sums
from whet.parallel.plan import Degrees, ParallelPlan, degrees_of
from whet.parallel.ranks import Ranks
from whet.parallel.share import Share
from whet.parallel.stream import TOKENS, WHOLE, Stream
from whet.parallel.tensor_parallel import divide_matrices, exchange_while_multiplying

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Division:
    """Divide the work of a training among processes.

    Attributes:
        plan: What was asked for.
        degrees: How many processes share what; their product is the world size.
        device: The device of this process.
    """

    plan: ParallelPlan
    ranks: Ranks
    degrees: Degrees
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def alone(cls) -> "Division":
        """Return the division of one process that does all."""
        return cls(ParallelPlan(), Ranks(), Degrees())

    @cached_property
    def mesh(self) -> DeviceMesh:
        """Return the processes by their places in each dimension of the plan."""
        sizes = self.degrees.sizes
        mesh = init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        for name in sizes:  # which have torch's own time-out, of half an hour
            _set_pg_timeout(timedelta(seconds=self.plan.timeout_s), mesh.get_group(name))
        return mesh

    @property
    def is_alone(self) -> bool:
        return self.ranks.is_alone

    @cached_property
    def data_rank(self) -> int:
        """Return the place of this process among those that see other rows."""
        if self.is_alone:
            return 0
        places = [self.mesh.get_local_rank(name) for name in ("replicate", "shard")]
        return places[0] * self.degrees.shard + places[1]

    @property
    def rows(self) -> Share:
        """Return which share of the rows of a batch this process sees."""
        return Share(self.data_rank, self.degrees.data)

    @cached_property
    def data_group(self) -> Any:
        """Return the group of the processes that see other rows, and hold the same part of the model."""
        timeout = timedelta(seconds=self.plan.timeout_s)
        group, _ = distributed.new_subgroups_by_enumeration(self.data_peers, timeout=timeout)
        return group

    @property
    def data_peers(self) -> list[list[int]]:
        """Return the ranks of each such group, of all processes."""
        found: list[list[int]] = self.mesh.mesh.permute(0, 3, 4, 1, 2).reshape(-1, self.degrees.data).tolist()
        return found

    @cached_property
    def stage_rank(self) -> int:
        """Return the place of this process among those that hold other layers."""
        return 0 if self.is_alone else self.mesh.get_local_rank("pipeline")

    @property
    def stages_group(self) -> Any:
        """Return the group of the processes that hold other layers, and see the same rows; None without such."""
        return self.mesh.get_group("pipeline") if self.degrees.pipeline > 1 else None

    @property
    def drawing_rank(self) -> int:
        """Return a number of the processes that draw other numbers, as for dropout: of other rows or other layers."""
        return self.stage_rank * self.degrees.data + self.data_rank

    def computed_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return what layers compute in, given the dtype of the parameters."""
        return dtype if self.plan.param_dtype is None else _DTYPES[self.plan.param_dtype]

    @cached_property
    def stream(self) -> Stream:
        """Return how the processes that share matrices hold the stream of a decoder."""
        if self.degrees.tensor == 1:
            return Stream()
        return Stream(self.mesh["tensor"], TOKENS if self.plan.sequence_parallel else WHOLE)

    @property
    def sums_in_backward(self) -> bool:
        """Return whether engines sum gradients over processes that see other rows, within backward.

        Zero-bubble schedules compute the gradients of weights outside of it, where no engine sees them.
        """
        return self.plan.pipeline_schedule != "zero_bubble"

    @property
    def shards_data(self) -> bool:
        """Return whether fully_shard divides the model among processes that see other rows, or keeps copies equal.

        DDP keeps copies of whole tensors equal, and takes none that tensor parallelism has divided.
        """
        divides = not self.is_alone and self.plan.stage >= 2
        return divides or (self.degrees.tensor > 1 and self.degrees.data > 1 and self.sums_in_backward)

    @property
    def divides_units(self) -> bool:
        """Return whether `share` divides one unit of a model after the other, and needs no weights before."""
        return self.shards_data and self.degrees.tensor * self.degrees.pipeline == 1

    def share(
        self, model: nn.Module, stages: Sequence[nn.Module] = (), fill: Callable[[nn.Module], None] | None = None
    ) -> None:
        """Divide a model's parameters in place. The optimiser is made afterwards, of the parameters that there are now.

        Args:
            stages: The parts of it that are called one by one, where other processes hold the others.
            fill: Gives a unit its weights just before it is divided, where `divides_units`; None where all are there.

        Raises:
            OptionError: The plan does not fit the model.
        """
        if self.degrees.tensor > 1:
            divide_matrices(model, self.stream)
        if self.plan.async_tensor_parallel:
            exchange_while_multiplying(self.mesh["tensor"])
        if not self.shards_data:
            return
        options: dict[str, Any] = {
            "mesh": self.mesh["replicate", "shard"] if self.degrees.replicate > 1 else self.mesh["shard"],
            "reshard_after_forward": self.plan.stage == 3,
            "mp_policy": self._precision(),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
            if self.plan.offload == "parameters"
            else OffloadPolicy(),
        }
        for part in stages or [model]:
            for unit in (*blocks_of(part), part):
                if fill is not None:
                    fill(unit)
                fully_shard(unit, **options)

    def _precision(self) -> MixedPrecisionPolicy:
        name, reduce = self.plan.param_dtype, self.plan.reduce_dtype
        return MixedPrecisionPolicy(
            param_dtype=None if name is None else _DTYPES[name],
            reduce_dtype=None if reduce is None else _DTYPES[reduce],
        )

    def called(self, model: nn.Module) -> nn.Module:
        """Return what is called in the place of a model, so that its gradients are summed over processes.

        Raises:
            OptionError: The processes do not lie on machines as the plan needs.
        """
        if self.shards_data or self.degrees.data == 1 or not self.sums_in_backward:
            return model
        found = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            process_group=self.data_group,
            bucket_cap_mb=self.plan.bucket_cap_mb,
            static_graph=self.plan.static_graph,
            gradient_as_bucket_view=self.plan.gradient_as_bucket_view,
            find_unused_parameters=self.plan.find_unused_parameters,
        )
        if self.plan.compression != "none" or self.plan.hierarchical_all_reduce:
            sums = machine_sums(self.ranks, self.data_peers) if self.plan.hierarchical_all_reduce else None
            compress(found, self.plan, self.data_group, sums)
        return found

    def optimizer(self, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Callable[[Any], Optimizer]:
        """Return what makes the optimiser of this process's part, given what makes the whole one."""
        if self.is_alone or self.plan.stage != 1:
            return make
        return lambda parameters: _divided(make(parameters), self.data_group)

    def summed_later(self, model: nn.Module) -> AbstractContextManager[None]:
        """Keep the gradients of the block on their process; those of the next backward without it are summed too."""
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return contextlib.nullcontext()

    def set_last(self, model: nn.Module, is_last: bool) -> None:
        """Say whether the next backward is the last one before a step."""
        if isinstance(model, FSDPModule):
            model.set_is_last_backward(is_last)

    def check_parts(self, number: int) -> None:
        """Raise OptionError where the engine cannot sum the gradients of so many micro-batches."""
        if number > 1 and self.plan.static_graph:
            raise OptionError(
                f"parallel.static_graph needs gradients to be summed in each backward, and a step has {number} "
                "micro-batches; leave it out, or leave out batch.micro_batch_size"
            )

    def total_of_all(self, numbers: Iterable[float]) -> list[float]:
        """Return the sums of numbers over all processes."""
        given = torch.tensor([float(one) for one in numbers], dtype=torch.float64)
        if not self.is_alone:
            distributed.all_reduce(given)
        found: list[float] = given.tolist()
        return found

    def total(self, numbers: Iterable[float]) -> list[float]:
        """Return the sums of numbers over the processes that see other rows."""
        given = torch.tensor(list(numbers), dtype=torch.float64)
        if self.degrees.data > 1:
            distributed.all_reduce(given, group=self.data_group)
        found: list[float] = given.tolist()
        return found

    def total_of_stages(self, numbers: Iterable[float]) -> list[float]:
        """Return the sums of numbers over the processes that hold other layers."""
        given = torch.tensor(list(numbers), dtype=torch.float64)
        if self.stages_group is not None:
            distributed.all_reduce(given, group=self.stages_group)
        found: list[float] = given.tolist()
        return found

    @property
    def divides_state(self) -> bool:
        """Return whether processes hold the optimiser's state of different parameters."""
        return self.plan.stage == 1 or self.degrees.pipeline > 1

    @cached_property
    def tensor_rank(self) -> int:
        """Return the place of this process among those that share matrices, and see the same rows."""
        return 0 if self.is_alone else self.mesh.get_local_rank("tensor")

    @property
    def holds_copies(self) -> bool:
        """Return whether another process, which comes first, holds a copy of what this one has undivided."""
        return self.data_rank > 0 or self.tensor_rank > 0

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float, copies: Iterable[nn.Parameter] = ()) -> Tensor:
        """Clip gradients by the norm over all processes, and return it.

        Args:
            copies: Those of the parameters that the process of another stage counts.
        """
        return clip_gradients(parameters, max_norm, self.stages_group, copies)


def division_of(plan: ParallelPlan, ranks: Ranks, device: torch.device) -> Division:
    """Return how a plan divides the work among the processes that were started.

    Raises:
        OptionError: The degrees do not multiply to their number, or what is asked for does not run here.
    """
    degrees = degrees_of(plan, ranks.world_size)
    if degrees.context > 1:
        raise OptionError(
            f"parallel.context_parallel_degree is {degrees.context}, and whet does not divide rows of tokens among "
            "processes; leave it out. With parallel.tensor_parallel_degree and sequence_parallel, they share the "
            "tokens outside of attention"
        )
    if plan.async_tensor_parallel and device.type != "cuda":
        raise OptionError(
            f"parallel.async_tensor_parallel exchanges through the memory of GPUs, and device is {device.type}; leave "
            "it out"
        )
    return Division(plan, ranks, degrees, device)


def inner_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimiser that holds this process's part of the state."""
    inner = getattr(optimizer, "optim", None)  # of ZeroRedundancyOptimizer
    return inner if isinstance(inner, Optimizer) else optimizer


def settled_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimiser that holds this process's part of the state, with the settings of its next step.

    A schedule has set them already, and the part would get them in that step.
    """
    found = inner_optimizer(optimizer)
    copy_settings(optimizer, found)
    return found


def copy_settings(source: Optimizer, target: Optimizer) -> None:
    """Give the groups of an optimiser the settings that those of another one have."""
    for group, own in zip(source.param_groups, target.param_groups, strict=True):
        own.update({name: value for name, value in group.items() if name != "params"})


def _divided(optimizer: Optimizer, group: Any) -> Optimizer:
    """Return an optimiser of the same kind and settings, of which each process updates a part and sends it to all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script, as torch imports its own optimisers
        from torch.distributed.optim import ZeroRedundancyOptimizer
    groups = [dict(one) for one in optimizer.param_groups]
    taken = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in taken}
    return ZeroRedundancyOptimizer(groups, type(optimizer), process_group=group, **settings)


@contextlib.contextmanager
def accumulating(division: Division, model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Run one of several backwards of a step: gradients are summed over processes in the last one."""
    division.set_last(model, is_last)
    with contextlib.nullcontext() if is_last else division.summed_later(model):
        yield
