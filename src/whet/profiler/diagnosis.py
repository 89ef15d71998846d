"""What bounds a model (types and signatures fixed by the lead; bodies to be written)."""

from dataclasses import dataclass
from enum import StrEnum

from whet.machine import Limits
from whet.profiler.layers import LayerCost, Profile


class Bound(StrEnum):
    COMPUTE = "compute-bound"
    BANDWIDTH = "bandwidth-bound"
    OVERHEAD = "overhead-bound"


@dataclass(frozen=True)
class Diagnosis:
    """bound: what most of the time is spent on. shares: of the time, per Bound. share_of_limit: attainable / measured."""

    bound: Bound
    shares: dict[Bound, float]
    share_of_limit: float
    sentence: str


def diagnose(profile: Profile, limits: Limits) -> Diagnosis:
    raise RuntimeError


def attainable_s(layer: LayerCost, limits: Limits, *, dtype: str = "float32", weight_scale: float = 1.0, activation_scale: float = 1.0) -> float:
    """The least time a layer could take here: the larger of operations / peak and bytes / bandwidth."""
    raise RuntimeError


def speedup_bound(
    profile: Profile,
    limits: Limits,
    *,
    dtype: str = "float32",
    kinds: frozenset[str] | None = None,
    weight_scale: float = 1.0,
    activation_scale: float = 1.0,
    removes_overhead: bool = False,
) -> float:
    """The best speedup there could be if the layers of `kinds` (all, if None) ran at the machine's limit in `dtype`.

    removes_overhead: the cost of dispatching each operator goes as well. Layers of other kinds keep their time.
    """
    raise RuntimeError
