"""What a watched process tells the one that watches it: one JSON object a line, over a local socket."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from whet.monitor.histogram import LatencyHistogram
from whet.monitor.series import Cell
from whet.monitor.steps import StepTotals

SOCKET_VARIABLE = "WHET_MONITOR_SOCKET"
INTERVAL_S = 0.5
MAX_LINE_BYTES = 1 << 20

Name = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=2000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Latencies(_Strict):
    """counts: of the histogram's buckets."""

    counts: dict[NonNegativeInt, PositiveInt]
    total_s: NonNegativeFloat
    shortest_s: NonNegativeFloat
    longest_s: NonNegativeFloat


class Steps(_Strict):
    """Steps that ended since the last message."""

    latencies: Latencies
    phases_s: dict[Name, NonNegativeFloat]
    num_samples: NonNegativeInt | None = None
    num_tokens: NonNegativeInt | None = None

    def totals(self) -> StepTotals:
        """Raises ValueError where the histogram's buckets are none."""
        times = self.latencies
        histogram = LatencyHistogram.from_counts(times.counts, times.total_s, times.shortest_s, times.longest_s)
        return StepTotals(histogram, dict(self.phases_s), self.num_samples, self.num_tokens)


class Message(_Strict):
    """steps: None where the process has no torch. cells: memory of the CUDA allocator, by key. problem: why steps
    cannot be seen, or ""."""

    format: Literal[1]
    pid: NonNegativeInt
    rank: NonNegativeInt = 0
    steps: Steps | None = None
    cells: dict[Name, NonNegativeFloat] = {}
    notes: dict[Name, Text] = {}
    problem: Text = ""

    def row_cells(self) -> dict[str, Cell]:
        return {key: Cell.of(value) for key, value in self.cells.items()}
