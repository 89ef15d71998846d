"""List the layouts that are possible for a model, a cluster and a batch: degrees that divide what they share."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from whet.errors import OptionError
from whet.planner.cluster import Cluster
from whet.planner.layout import Bytes, Layout, OptimizerName, Precision, Recompute, Software, Work
from whet.planner.model_shape import ModelShape
from whet.planner.optimizers import bytes_of

MOST_ROWS_AT_ONCE = 32
LEAST_TOKENS_OF_A_CONTEXT = 2048  # a shorter part of a row costs more in messages than it saves

RECOMPUTES: tuple[Recompute, ...] = ("none", "operators", "full")
"""What backward may compute again, least first. Fused attention keeps no scores, so it has no part of its own."""


@dataclass(frozen=True, order=True)
class Degrees:
    """Hold the degrees that decide where a model's parts lie."""

    tensor: int
    pipeline: int
    context: int
    data: int


@dataclass(frozen=True)
class Space:
    """Hold what is possible. Layouts that `admits` refuses are left out.

    Attributes:
        compiled: Whether elementwise operators are fused.
        most_tensor: The most chips that share a matrix; by default those of a node, whose links are fast enough.
        offloads: Whether the optimiser's state may lie in the host's memory, as the values that are tried.
    """

    shape: ModelShape
    cluster: Cluster
    work: Work
    precision: Precision = "bfloat16"
    optimizer: OptimizerName = "adamw"
    software: Software = "torch-2024"
    compiled: bool = False
    most_tensor: int | None = None
    offloads: tuple[bool, ...] = (False,)
    admits: Callable[[Layout], bool] = lambda layout: True

    @cached_property
    def bytes(self) -> Bytes:
        """Return the bytes of a trained parameter."""
        return bytes_of(self.shape, self.precision, self.optimizer)

    @cached_property
    def degrees(self) -> tuple[Degrees, ...]:
        """Return all combinations of degrees, in a fixed order."""
        chips, found = self.cluster.num_chips, list[Degrees]()
        most = min(chips, self.most_tensor or self.cluster.chips_per_node)
        for tensor in _divisors(chips):
            if tensor > most or not self._divides_matrices(tensor):
                continue
            for pipeline in _divisors(chips // tensor):
                if not self._divides_layers(pipeline):
                    continue
                for context in _divisors(chips // tensor // pipeline):
                    if not self._divides_rows(context):
                        continue
                    data = chips // tensor // pipeline // context
                    if self.work.global_batch_size % data:
                        continue
                    found.append(Degrees(tensor, pipeline, context, data))
        return tuple(found)

    def micro_batch_sizes(self, degrees: Degrees) -> tuple[int, ...]:
        """Return the rows that a chip may compute at a time."""
        rows = self.work.global_batch_size // degrees.data
        return tuple(one for one in _divisors(rows) if one <= MOST_ROWS_AT_ONCE)

    def virtual_stages(self, degrees: Degrees) -> tuple[int, ...]:
        """Return how many stages a chip may have."""
        if degrees.pipeline == 1:
            return (1,)
        most = self.shape.num_layers // degrees.pipeline
        return tuple(one for one in range(1, most + 1) if self._divides_layers(degrees.pipeline * one))

    def shardings(self, degrees: Degrees) -> tuple[tuple[int, int], ...]:
        """Return pairs of a stage of ZeRO and the chips that share a copy's state."""
        data = degrees.data
        if data == 1:
            return ((0, 1),)
        found = [(0, 1), (1, data), (2, data), (3, data)]
        within = math.gcd(data, max(1, self.cluster.chips_per_node // (degrees.tensor * degrees.context)))
        while 1 < within < data:  # groups of a node, and of several nodes
            found += [(2, within), (3, within)]
            within *= 4
            if data % within:
                break
        return tuple(found)

    def experts(self, degrees: Degrees) -> tuple[int, ...]:
        """Return how many of the data-parallel chips may share the experts of a layer."""
        if self.shape.experts is None:
            return (1,)
        return tuple(one for one in _divisors(degrees.data) if self.shape.experts.number % one == 0)

    def layout(
        self,
        degrees: Degrees,
        *,
        sharding: tuple[int, int],
        expert: int = 1,
        micro_batch_size: int = 1,
        virtual_stages: int = 1,
        recompute: Recompute = "none",
        offload: bool = False,
    ) -> Layout | None:
        """Return a layout; None where it is not possible."""
        stage, shard = sharding
        parts = self.work.global_batch_size // (degrees.data * micro_batch_size)
        if virtual_stages > 1 and parts % degrees.pipeline:
            return None  # an interleaved schedule goes in rounds of as many parts as there are chips in the pipeline
        found = Layout(
            replicate=degrees.data // shard,
            shard=shard,
            tensor=degrees.tensor,
            pipeline=degrees.pipeline,
            context=degrees.context,
            expert=expert,
            zero_stage=stage,  # type: ignore[arg-type]
            virtual_stages=virtual_stages,
            micro_batch_size=micro_batch_size,
            recompute=recompute,
            precision=self.precision,
            compiled=self.compiled,
            software=self.software,
            optimizer=self.optimizer,
            bytes=self.bytes,
            offload=offload,
        )
        return found if self.admits(found) else None

    def layouts(self) -> Iterator[Layout]:
        """Yield all layouts."""
        for degrees in self.degrees:
            for sharding, expert, rows, stages, recompute, offload in product(
                self.shardings(degrees),
                self.experts(degrees),
                self.micro_batch_sizes(degrees),
                self.virtual_stages(degrees),
                RECOMPUTES,
                self.offloads,
            ):
                found = self.layout(
                    degrees,
                    sharding=sharding,
                    expert=expert,
                    micro_batch_size=rows,
                    virtual_stages=stages,
                    recompute=recompute,
                    offload=offload,
                )
                if found is not None:
                    yield found

    def count(self) -> int:
        """Return how many layouts there are, `admits` aside."""
        total = 0
        for degrees in self.degrees:
            per_stages = 0
            for rows in self.micro_batch_sizes(degrees):
                parts = self.work.global_batch_size // (degrees.data * rows)
                stages = self.virtual_stages(degrees)
                per_stages += len(stages) if parts % degrees.pipeline == 0 else 1
            kinds = (self.shardings(degrees), self.experts(degrees), RECOMPUTES, self.offloads)
            total += per_stages * math.prod(map(len, kinds))
        return total

    def _divides_matrices(self, tensor: int) -> bool:
        shape = self.shape
        shares = tensor % shape.num_kv_heads == 0 or shape.num_kv_heads % tensor == 0  # fewer heads than chips: copies
        inner = shape.experts.intermediate_size if shape.experts else shape.intermediate_size
        return shape.num_heads % tensor == 0 and shares and inner % tensor == 0

    def _divides_layers(self, stages: int) -> bool:
        """Return whether stages are about equal: the embedding and the head may stand for a layer each."""
        layers = self.shape.num_layers
        ends = layers + self.shape.num_extra_layers + 2
        return stages <= layers and (layers % stages == 0 or ends % stages == 0)

    def _divides_rows(self, context: int) -> bool:
        tokens = self.work.sequence_length
        if context == 1:
            return True
        return tokens % (2 * context) == 0 and tokens // context >= LEAST_TOKENS_OF_A_CONTEXT


def check_batch(work: Work, chips: int) -> None:
    """Raise OptionError where not even two chips could have equal rows of a batch, with the nearest that they could."""
    rows = work.global_batch_size
    if chips == 1 or math.gcd(rows, chips) > 1 or chips % rows == 0:
        return
    below, above = rows // chips * chips, -(-rows // chips) * chips
    if below == 0:
        below = max(one for one in _divisors(chips) if one < rows)
    nearest = sorted({below, above}, key=lambda one: abs(one - rows))
    raise OptionError(
        f"--global-batch-size {rows} does not divide among {chips} GPUs; the nearest that do are "
        f"{nearest[0]} and {nearest[1]}"
    )


def _divisors(number: int) -> tuple[int, ...]:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small)}))
