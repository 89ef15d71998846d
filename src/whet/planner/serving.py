"""Plan a server of a language model: replicas, the chips of each, the batch, and what a token costs, within an SLO."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict

from whet.core.slo import Slo
from whet.planner.cluster import Cluster
from whet.planner.curves import Constants, fitted
from whet.planner.layout import Layout
from whet.planner.model_shape import ModelShape
from whet.planner.network import Group, Wires, all_reduce_s, wires
from whet.planner.operations import forward_operations
from whet.planner.parameters import mlp_parameters, model_count, num_sparse_layers
from whet.planner.prediction import Interval

ServingPrecision = Literal["bfloat16", "fp8"]
MARGIN = 0.1
WITHIN = 0.95
_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_MOST_REQUESTS = 4096
_LAUNCH_S = 5e-6  # of a layer in decode, whose kernels a graph launches
_SPREAD = 0.25
_ROUNDS = 40  # of halving an interval: to a trillionth of it


@dataclass(frozen=True)
class Traffic:
    """Say what a server is asked, and within which limits it answers.

    Attributes:
        rate: The requests a second, over all replicas.
    """

    prompt_tokens: int
    output_tokens: int
    rate: float
    slo: Slo


class ServingPlan(BaseModel):
    """Hold one way to serve.

    Attributes:
        tensor: The chips of a replica, which share each matrix.
        replicas: How many there are.
        chips: Those of all replicas.
        batch: The requests that a replica decodes at once, on average.
        most_batch: The requests whose keys and values fit beside the weights.
        weight_bytes: The weights on a chip.
        kv_bytes: The keys and values on a chip, for the mean number of requests.
        kv_bytes_per_token: Those of one token on a chip.
        ttft_s: The time to the first token that WITHIN of the requests stay under.
        tpot_s: The mean time of a token after the first.
        busy: The share of a replica's time that prompts take.
        most_rate: The requests a second that a replica bears within the limits.
        tokens_per_s: Generated ones, of all replicas.
        joules_per_token: Of a generated one, with chips and hosts under full load.
        dollars_per_million_tokens: Of generated tokens; None where no price is known.
        bound: What holds decoding back: "memory" or "compute".
    """

    model_config = ConfigDict(frozen=True)

    tensor: int
    replicas: int
    chips: int
    batch: float
    most_batch: int
    weight_bytes: float
    kv_bytes: float
    kv_bytes_per_token: float
    ttft_s: Interval
    tpot_s: Interval
    busy: float
    most_rate: float
    tokens_per_s: float
    joules_per_token: float
    dollars_per_million_tokens: float | None
    bound: Literal["memory", "compute"]


@dataclass(frozen=True)
class Replica:
    """Compute what one replica does.

    Attributes:
        speed: A factor of all rates, for the ends of intervals.
    """

    shape: ModelShape
    cluster: Cluster
    tensor: int
    traffic: Traffic
    precision: ServingPrecision
    speed: float = 1.0

    @cached_property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights on one chip."""
        return model_count(self.shape).total * _BYTES[self.precision] / self.tensor

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Return the bytes of a token's keys and values on one chip, in bfloat16."""
        shape = self.shape
        if shape.latent is not None:  # the small vector is whole on each chip
            width = float(shape.latent.rank + shape.latent.rotary_size)
        else:
            width = 2.0 * max(1.0, shape.num_kv_heads / self.tensor) * shape.head_size
        return 2.0 * width * shape.num_layers

    @cached_property
    def most_kept(self) -> float:
        """Return the tokens whose keys and values are kept at the end of a request."""
        return self._kept(self.traffic.prompt_tokens + self.traffic.output_tokens)

    @cached_property
    def most_batch(self) -> int:
        """Return how many requests of full length fit beside the weights."""
        free = self.cluster.chip.memory_bytes * (1 - MARGIN) - self.weight_bytes
        return max(0, min(_MOST_REQUESTS, int(free / (self.most_kept * self.kv_bytes_per_token))))

    @cached_property
    def prefill_s(self) -> float:
        """Return the seconds of one prompt."""
        tokens = self.traffic.prompt_tokens
        operations = forward_operations(self.shape, tokens, True) * tokens
        reading = self.weight_bytes / self._bytes_per_s
        return max(operations / self.tensor / self._flops_per_s, reading) + self._sums_s(tokens)

    def decode_parts_s(self, batch: float) -> tuple[float, float]:
        """Return the seconds of a step of decoding, by what its memory and its arithmetic take alone."""
        kept = self._kept(self.traffic.prompt_tokens + self.traffic.output_tokens / 2)
        read = self._read_weights(batch) + batch * kept * self.kv_bytes_per_token
        operations = forward_operations(self.shape, int(2 * kept), True) * batch
        return read / self._bytes_per_s, operations / self.tensor / self._flops_per_s

    def decode_s(self, batch: float) -> float:
        return max(self.decode_parts_s(batch)) + self._sums_s(batch) + _LAUNCH_S * self.shape.num_layers

    def at(self, rate: float) -> tuple[float, float, float]:
        """Return the batch, the time of a token, and the time to the first token at a rate; infinite where too fast.

        Prompts take a share of the time, in which nothing is decoded. The batch is the one at which as many requests
        end as come (Little's law). A request waits as in a queue with random arrivals and equal service (M/D/1), whose
        tail falls exponentially.
        """
        prefill, outputs = self.prefill_s, self.traffic.output_tokens
        busy = rate * prefill
        if busy >= 1:
            return math.inf, math.inf, math.inf
        batch = self._settled(rate * outputs / (1 - busy))
        if batch > _MOST_REQUESTS:
            return math.inf, math.inf, math.inf
        step = self.decode_s(max(1.0, batch))
        waiting = busy * prefill / (2 * (1 - busy))
        tail = waiting / busy * math.log(max(1.0, busy / (1 - WITHIN))) if busy else 0.0
        return batch, step / (1 - busy), tail + step + prefill

    def _settled(self, tokens_per_s: float) -> float:
        """Return the smallest batch that decodes so many tokens a second; infinite where none does."""
        low, high = 0.0, 2.0 * _MOST_REQUESTS
        if high / self.decode_s(high) < tokens_per_s:
            return math.inf
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (low, middle) if middle / self.decode_s(middle) >= tokens_per_s else (middle, high)
        return high

    def bears(self, rate: float) -> bool:
        """Return whether the limits hold at a rate, and the batch fits."""
        batch, tpot, ttft = self.at(rate)
        if batch > self.most_batch:
            return False
        end = ttft + tpot * (self.traffic.output_tokens - 1)
        return self.traffic.slo.is_met(ttft_s=ttft, tpot_s=tpot, e2e_s=end)

    def most_rate(self) -> float:
        """Return the highest rate at which the limits hold; 0 where they never do."""
        low, high = 0.0, 1 / self.prefill_s
        if not self.bears(1e-6):
            return 0.0
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.bears(middle) else (low, middle)
        return low

    @cached_property
    def _constants(self) -> Constants:
        return fitted(self.cluster, Layout()).constants

    @cached_property
    def _flops_per_s(self) -> float:
        flops, own = self.cluster.chip.flops, self._constants
        if self.precision == "fp8" and "fp8" in flops:
            return flops["fp8"] * own.matrix_efficiency * own.fp8_share * self.speed
        peak = flops.get("bfloat16") or flops.get("float16") or max(flops.values())
        return peak * own.matrix_efficiency * self.speed

    @cached_property
    def _bytes_per_s(self) -> float:
        return self.cluster.chip.bytes_per_s * self._constants.memory_efficiency * self.speed

    @cached_property
    def _wires(self) -> Wires:
        return wires(self.cluster, self._constants)

    def _kept(self, tokens: float) -> float:
        return min(tokens, self.shape.window or tokens)

    def _read_weights(self, batch: float) -> float:
        """Return the bytes of weights that a step reads on one chip: of experts, those that some token goes to."""
        shape = self.shape
        if shape.experts is None:
            return self.weight_bytes
        one = mlp_parameters(shape.hidden_size, shape.experts.intermediate_size, shape.is_gated)
        routed = num_sparse_layers(shape) * shape.experts.number * one * _BYTES[self.precision] / self.tensor
        unseen = float((1 - shape.experts.per_token / shape.experts.number) ** batch)
        return self.weight_bytes - routed * unseen

    def _sums_s(self, tokens: float) -> float:
        """Return the seconds of the two sums a layer among tensor-parallel chips."""
        if self.tensor == 1:
            return 0.0
        size = 2.0 * tokens * self.shape.hidden_size
        return 2 * self.shape.num_layers * all_reduce_s(size, Group(self.tensor, 1), self._wires) / self.speed


def serving_plans(
    shape: ModelShape, cluster: Cluster, traffic: Traffic, precision: ServingPrecision
) -> tuple[list[ServingPlan], list[Replica]]:
    """Return the plans within the limits, the cheapest first, and the replicas that cannot hold them."""
    found, refused = list[ServingPlan](), list[Replica]()
    for tensor in _degrees(shape, cluster):
        one = Replica(shape, cluster, tensor, traffic, precision)
        if one.most_batch < 1 or (most := one.most_rate()) == 0:
            refused.append(one)
        else:
            found.append(_plan_of(one, most))
    return sorted(found, key=lambda plan: (plan.chips, plan.ttft_s.value)), refused


def _degrees(shape: ModelShape, cluster: Cluster) -> list[int]:
    return [
        one
        for one in range(1, cluster.chips_per_node + 1)
        if cluster.chips_per_node % one == 0
        and shape.num_heads % one == 0
        and (shape.num_kv_heads % one == 0 or one % shape.num_kv_heads == 0)
    ]


def _plan_of(one: Replica, most: float) -> ServingPlan:
    traffic, chip = one.traffic, one.cluster.chip
    replicas = max(1, math.ceil(traffic.rate / most * (1 - 1e-9)))
    rate = traffic.rate / replicas
    batch, tpot, ttft = one.at(rate)
    fast, slow = (replace(one, speed=speed).at(rate) for speed in (1 + _SPREAD, 1 - _SPREAD))
    chips, tokens_per_s = replicas * one.tensor, traffic.rate * traffic.output_tokens
    watts = chips * (chip.power_w + one.cluster.host.power_w / one.cluster.chips_per_node)
    price = chip.dollars_per_hour
    memory_s, compute_s = one.decode_parts_s(max(1.0, batch))
    return ServingPlan(
        tensor=one.tensor,
        replicas=replicas,
        chips=chips,
        batch=batch,
        most_batch=one.most_batch,
        weight_bytes=one.weight_bytes,
        kv_bytes=batch * one.most_kept * one.kv_bytes_per_token,
        kv_bytes_per_token=one.kv_bytes_per_token,
        ttft_s=Interval(value=ttft, low=fast[2], high=slow[2]),
        tpot_s=Interval(value=tpot, low=fast[1], high=slow[1]),
        busy=rate * one.prefill_s,
        most_rate=most,
        tokens_per_s=tokens_per_s,
        joules_per_token=watts / tokens_per_s,
        dollars_per_million_tokens=None if price is None else chips * price / 3600 / tokens_per_s * 1e6,
        bound="memory" if memory_s >= compute_s else "compute",
    )
