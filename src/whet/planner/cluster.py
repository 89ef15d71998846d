"""Describe a cluster: chips, the links between them, and what they cost."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from whet.errors import OptionError

Number = Literal["float32", "tfloat32", "bfloat16", "float16", "fp8", "int8"]


class Sourced(BaseModel):
    """Say where figures come from.

    Attributes:
        source: A document or a measurement, which the answer names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: str = Field(min_length=1)


class Chip(Sourced):
    """Describe a GPU, or the processors of a host that computes.

    Attributes:
        flops: Dense operations a second by the numbers that are multiplied, as its maker says them (without sparsity).
        memory_bytes: Its own memory.
        bytes_per_s: How fast it reads that memory, as its maker says.
        power_w: What it takes under load.
        dollars_per_hour: What it is rented for; None where it is not known.
        price_source: Where that comes from, if not from `source`.
    """

    name: str
    flops: dict[Number, PositiveFloat] = Field(min_length=1)
    memory_bytes: float = Field(gt=0)
    bytes_per_s: float = Field(gt=0)
    power_w: float = Field(gt=0)
    dollars_per_hour: float | None = Field(default=None, gt=0)
    price_source: str = ""


class Link(Sourced):
    """Describe how chips reach each other.

    Attributes:
        bytes_per_s: What one chip sends, while it receives as much.
        latency_s: The time of the smallest message.
        gather_bytes_per_s: What one chip sends while it gathers or scatters, where that is slower than sums.
        is_measured: Whether programs were seen to reach these speeds. Of others, a fitted share counts.
    """

    name: str
    bytes_per_s: float = Field(gt=0)
    latency_s: float = Field(ge=0)
    gather_bytes_per_s: float | None = Field(default=None, gt=0)
    is_measured: bool = False


class Host(Sourced):
    """Describe what a node has beside its chips.

    Attributes:
        memory_bytes: Memory that chips can be relieved of state to; 0 where the chips are the node's own processors.
        link: Between a chip and that memory.
        power_w: What it takes without the chips, with its share of cooling and network.
    """

    name: str
    memory_bytes: float = Field(ge=0)
    link: Link
    power_w: float = Field(ge=0)


class Cluster(BaseModel):
    """Hold equal nodes of equal chips.

    Attributes:
        inside: Links within a node.
        between: Links between nodes, of each chip. None for a single node.
        oversubscription: By how much the network between nodes is narrower than the links of all chips into it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    chip: Chip
    chips_per_node: int = Field(ge=1)
    num_chips: int = Field(ge=1)
    host: Host
    inside: Link
    between: Link | None = None
    oversubscription: float = Field(default=1.0, ge=1)

    def with_chips(self, number: int) -> "Cluster":
        """Return the same cluster with another number of chips.

        Raises:
            OptionError: They do not fill nodes, or there is no link between nodes.
        """
        if number > self.chips_per_node and number % self.chips_per_node:
            raise OptionError(f"{number} chips do not fill nodes of {self.chips_per_node}; ask for a multiple of that")
        if number > self.chips_per_node and self.between is None:
            raise OptionError(
                f"cluster {self.name} has no link between nodes, and {number} chips need several nodes of "
                f"{self.chips_per_node}; add a table [between] to its description"
            )
        return self.model_copy(update={"num_chips": number})
