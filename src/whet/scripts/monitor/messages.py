"""Define the messages of a watched process to `whet monitor`: one JSON object a line, over a local socket."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from whet.measure.latency_histogram import LatencyHistogram
from whet.scripts.monitor.series import Cell
from whet.scripts.monitor.steps import StepTotals

SOCKET_VARIABLE = "WHET_MONITOR_SOCKET"
MODULE_VARIABLE = "WHET_MONITOR_MODULE"  # the module whose `begin` sends a process's steps there
INTERVAL_S = 0.5
MAX_LINE_BYTES = 1 << 20

Name = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=2000)]


class _Strict(BaseModel, extra="forbid", allow_inf_nan=False):
    """Take no other fields, and no numbers that are not finite."""


class Latencies(_Strict):
    """Hold the times of some steps as a histogram: `counts` has the number of steps in each bucket."""

    counts: dict[NonNegativeInt, PositiveInt]
    total_s: NonNegativeFloat
    shortest_s: NonNegativeFloat
    longest_s: NonNegativeFloat


class Steps(_Strict):
    """Hold the steps that ended since the last message. Their numbers of samples and tokens are None if unknown."""

    latencies: Latencies
    phases_s: dict[Name, NonNegativeFloat]
    num_samples: NonNegativeInt | None = None
    num_tokens: NonNegativeInt | None = None

    def totals(self) -> StepTotals:
        """Return the steps as totals.

        Raises:
            ValueError: The histogram has invalid buckets.
        """
        times = self.latencies
        histogram = LatencyHistogram.from_counts(times.counts, times.total_s, times.shortest_s, times.longest_s)
        return StepTotals(histogram, dict(self.phases_s), self.num_samples, self.num_tokens)


class Message(_Strict):
    """Hold one message.

    Attributes:
        rank: The rank of the process in a distributed run; 0 without one.
        host: The machine's name, or "".
        rss_bytes: The process's resident memory; None for not known.
        steps: The steps since the last message; None if the process reports a problem instead.
        cells: The memory of the CUDA allocator, by key.
        notes: Remarks for the reader, by key.
        problem: Why steps cannot be seen, or "".
    """

    format: Literal[1]
    pid: NonNegativeInt
    rank: NonNegativeInt = 0
    host: Name = ""
    rss_bytes: NonNegativeInt | None = None
    steps: Steps | None = None
    cells: dict[Name, NonNegativeFloat] = {}
    notes: dict[Name, Text] = {}
    problem: Text = ""

    def row_cells(self) -> dict[str, Cell]:
        return {key: Cell.of(value) for key, value in self.cells.items()}
