"""The machine's measured limits (types fixed by the lead; measuring to be written)."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The best this machine has been seen to do.

    read_bandwidth: bytes/s, all cores, far beyond cache. gemm: dtype name ("float32", "bfloat16", "float16",
    "int8") -> operations/s (2mnk), dense; a dtype the machine cannot do is absent.
    """

    read_bandwidth: float
    gemm: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"


def measure_limits() -> Limits:
    raise RuntimeError
