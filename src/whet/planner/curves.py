"""Hold what was fitted to published runs: which share of a chip's and a link's peak programs reach."""

import math
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from whet.planner.cluster import Chip, Cluster
from whet.planner.layout import Layout, Software

GENERATIONS = {
    "ampere": ("A100", "A800"),
    "hopper": ("H100", "H200", "H800", "H20", "GH200"),
}
# Watts by a peak of 1e12 bfloat16 operations a second, of the chip of each generation that the fit is made on.
WATTS = {"ampere": 400 / 312, "hopper": 700 / 989}
# A processor's own cores copy its messages, so that these take the whole time of what they would hide behind.
_PROCESSORS = ("EPYC", "XEON", "PROCESSOR", "CORE(TM)", "RYZEN", "GRACE")
_OF_PROCESSORS = {"contention": 1.0}


@dataclass(frozen=True)
class Constants:
    """Hold the fitted constants of one family of programs on one generation of chips.

    Attributes:
        matrix_efficiency: The share of the peak that a large matrix product reaches.
        fp8_share: The share of the fp8 peak that it reaches, over that of the 16-bit peak.
        attention_efficiency: The share of the peak that fused attention reaches, of the pairs that a token sees.
        memory_efficiency: The share of the memory's bandwidth that elementwise operators reach.
        passes: How often elementwise operators read and write what one fused kernel would, where PyTorch does not
            compile them.
        inside_efficiency: The share of the links within a node that collectives reach.
        between_efficiency: The share of the links between nodes.
        contention: The share of the time of hidden messages by which they slow down what is computed meanwhile.
        jitter: By which share of a step chips differ, as a standard deviation; the slowest of all decides.
        hidden: The share of tensor-parallel messages that is hidden where they are overlapped.
        fragmentation: What the allocator holds beside what is used, as a share of activations and buffers.
    """

    matrix_efficiency: float
    fp8_share: float
    attention_efficiency: float
    memory_efficiency: float
    passes: float
    inside_efficiency: float
    between_efficiency: float
    contention: float
    hidden: float
    jitter: float
    fragmentation: float


@dataclass(frozen=True)
class Spread:
    """Hold the share of a prediction within which nineteen of twenty published figures lie, by runs left out."""

    step: float
    memory: float


@dataclass(frozen=True)
class Fitted:
    """Hold a set of constants, how it was found, and what range of runs it was fitted to.

    Attributes:
        family: The family of programs and the generation of chips whose constants they are.
        is_own: Whether they are those of the layout's own programs on the cluster's own generation.
        ranges: The smallest and the largest of what was fitted, by its name.
    """

    constants: Constants
    spread: Spread
    family: str
    is_own: bool
    ranges: dict[str, tuple[float, float]] = field(hash=False)
    source: str


def generation(chip: Chip) -> str | None:
    """Return which fitted generation a chip belongs to by its name, or None."""
    name = chip.name.upper().replace("-", " ").replace("_", " ")
    for known, parts in GENERATIONS.items():
        if any(part in name for part in parts):
            return known
    return None


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = resources.files("whet.planner").joinpath("fitted.toml").read_text()
    return tomllib.loads(text)


def is_processor(chip: Chip) -> bool:
    """Return whether a chip is the processors of a host, by its name."""
    return generation(chip) is None and any(part in chip.name.upper() for part in _PROCESSORS)


@lru_cache(maxsize=64)
def _fitted(own: str | None, software: Software, on_processors: bool) -> Fitted:
    data = _data()
    families = data["families"]
    wanted = f"{software}-{own}"
    # The same programs on other chips are nearer than other programs.
    near = (wanted, f"{software}-hopper", f"{software}-ampere", "torch-2024-hopper")
    name = next(name for name in near if name in families)
    of_chips = data["chips"][name.rpartition("-")[2]]
    values = {**data["shared"], **of_chips, **families[name], **(_OF_PROCESSORS if on_processors else {})}
    return Fitted(
        Constants(**{key: float(values[key]) for key in Constants.__dataclass_fields__}),
        Spread(float(data["spread"]["step"]), float(data["spread"]["memory"])),
        name,
        name == wanted,
        {key: (float(low), float(high)) for key, (low, high) in data["ranges"].items()},
        f"constants of {name}, fitted to published runs (docs/planner.md)",
    )


def fitted(cluster: Cluster, layout: Layout) -> Fitted:
    """Return the constants for a family of programs on a cluster's chips; the nearest where none were fitted."""
    return _fitted(generation(cluster.chip), layout.software, is_processor(cluster.chip))


def clock_share(chip: Chip) -> float:
    """Return how much slower a chip computes that is allowed fewer watts than the chip that the fit is made on.

    Power grows with the cube of the clock where voltage follows it, so the clock follows the cube root of the power.
    """
    near = generation(chip)
    peak = chip.flops.get("bfloat16")
    if near is None or peak is None:
        return 1.0
    return min(1.0, math.cbrt(chip.power_w / (peak / 1e12) / WATTS[near]))
