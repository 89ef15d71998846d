"""Define what a sweep or a gate found, as types that are written as JSON."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from whet.comparison.bench.growth import Growth
from whet.errors import BaselineError, reason
from whet.files import write_whole
from whet.ui.notebook import Shown

FORMAT = 1


class Point(BaseModel):
    """Hold the figures of one target at one size, each the median over its processes; samples are those of the first.

    Attributes:
        p99_ms: The 99th percentile of single calls; None below 500 calls. If every process made fewer than 500, the
            calls of all processes are taken together.
        energy_j: Joules per call; None where there is no counter, and `energy_reason` says why.
        share_of_limit: The least time that the machine's limits allow over the measured time, 0 to 1.
    """

    busy: str = ""  # what disturbed it on a busy machine, where that could not be waited for
    load: dict[str, float] = Field(default_factory=dict)  # what else the machine did meanwhile: measure.load.Load
    target: str
    sizes: dict[str, int] = Field(default_factory=dict)  # batch, seq; what the target has by itself is left out
    status: Literal["done", "partial", "failed"] = "done"
    reason: str = ""
    num_samples: int = 1
    latency_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    throughput_per_s: float | None = None
    num_calls: int = 0
    peak_bytes: int | None = None
    working_bytes: int | None = None  # of the peak, what was not held before the first timed call
    cuda_peak_bytes: int | None = None
    live_tensor_bytes: int | None = None
    watts: float | None = None
    energy_j: float | None = None
    energy_reason: str = ""
    share_of_limit: float | None = None
    process_latencies_ms: list[float] = Field(default_factory=list)
    samples_ms: list[float] = Field(default_factory=list)

    @property
    def label(self) -> str:
        """Return the target with its sizes, as "digits-cnn (batch 8)"."""
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return f"{self.target} ({sizes})" if sizes else self.target

    def __repr__(self) -> str:
        time = f"{self.latency_ms:.3g} ms" if self.latency_ms is not None else self.reason or "not measured"
        return f"Point({self.label}: {self.status}, {time})"


class Sweep(Shown, BaseModel, extra="ignore"):
    """Every point that was asked for, with the machine it was measured on. Also what a baseline file holds."""

    format: int = FORMAT
    command: str = ""
    started_at: str = ""
    fingerprint: str
    machine: dict[str, Any]
    versions: dict[str, str] = Field(default_factory=dict)
    points: list[Point]
    growth: dict[str, list[Growth]] = Field(default_factory=dict)  # by target

    def __repr__(self) -> str:
        return f"Sweep({', '.join(map(repr, self.points))})"

    def write(self, path: str | Path) -> None:
        """Write the sweep as JSON, whole or not at all."""
        write_whole(Path(path), json.dumps(self.model_dump(mode="json"), indent=1) + "\n")


class BenchmarkVerdict(BaseModel):
    """The verdict on one benchmark of a gate, as it is written. It holds a Claim, turned to what a gate asks for.

    Attributes:
        slowdown: New time over old time; 1.02 is two percent slower.
        p_slower: The chance that equal code looks at least this slow.
        seconds: How long its processes took.
        reason: Why it could not be measured, where it could not.
        busy: What disturbed it on a busy machine. A verdict that is not inconclusive rests on quiet pairs alone, unless
            the user asked to go on.
    """

    label: str
    outcome: Literal["pass", "fail", "inconclusive"]
    slowdown: float | None = None
    ci95: tuple[float, float] | None = None
    p_slower: float | None = None
    noise: float | None = None
    num_pairs: int = 0
    seconds: float = 0.0
    reason: str = ""
    busy: str = ""
    old_ms: list[float] = Field(default_factory=list)
    new_ms: list[float] = Field(default_factory=list)

    def __repr__(self) -> str:
        ratio = "" if self.slowdown is None else f", slowdown {self.slowdown:.3g}"
        return f"BenchmarkVerdict({self.label}: {self.outcome}{ratio}, {self.num_pairs} pairs)"


class Gate(Shown, BaseModel):
    """Hold what a gate decided, and on what evidence. `compared` says in words which versions were compared."""

    format: int = FORMAT
    outcome: Literal["pass", "fail", "inconclusive"]
    compared: str
    tolerance: float
    fingerprint: str
    verdicts: list[BenchmarkVerdict]
    seconds: float = 0.0

    def __repr__(self) -> str:
        return f"Gate({', '.join([self.outcome, self.compared, *map(repr, self.verdicts)])})"


def read_sweep(path: Path) -> Sweep:
    """Read a baseline that `whet bench --save` wrote.

    Raises:
        BaselineError: The file cannot be read, or is no baseline.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
            raise BaselineError(f"{path} has format {data['format']}, this whet reads {FORMAT}; save a new baseline")
        return Sweep.model_validate(data)
    except FileNotFoundError as error:
        raise BaselineError(f"there is no baseline {path}; write one with `whet bench TARGET --save {path}`") from error
    except OSError as error:
        raise BaselineError(
            f"{path} cannot be read: {error.strerror}; give a file that `whet bench --save` wrote"
        ) from error
    except (ValueError, ValidationError) as error:
        raise BaselineError(f"{path} is no baseline of whet, or damaged ({reason(error)}); save a new one") from error
