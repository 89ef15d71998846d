"""What one process measured of one variant, as it crosses the border between processes."""

import math
import statistics
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from whet.measure.evidence import Evidence
from whet.measure.load import NO_LOAD, Load

_LEAST_COMMON = 3  # calls of a sequence that both sides have to have made


class Run(BaseModel):
    """The result of measuring one variant once, in a process of its own.

    Attributes:
        seconds: Median seconds per call over the quiet blocks; of several different calls, the mean of their medians.
        p90_s: The 90th percentile of single calls.
        num_calls: Timed calls.
        num_samples: Samples that one call works on.
        calls_s: Seconds of each quiet call by its number, where no call equals another one; of each call, where the
            run was disturbed.
        blocks_s: Median seconds per call of each block, in order, where blocks of two variants are held side by side.
        loads: What else the machine did beside each block.
        load: What else the machine did beside all of them.
        busy: What disturbed too many of the blocks; "" for a quiet run.
        peak_bytes: Peak resident memory of the process.
        live_tensor_bytes: Memory of PyTorch's tensors after the last call.
        cuda_peak_bytes: Peak of the GPU's allocator; None without a GPU.
        evidence: What the calls returned or led to, to be compared with the other variant's.
        failure: Why the process gave no times; "" where it did.
        details: What else is known of a kind of workload, for who measures it.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    seconds: float = 0.0
    p90_s: float | None = None
    num_calls: int = 0
    num_samples: float = 1.0
    calls_s: dict[int, float] = Field(default_factory=dict)
    blocks_s: tuple[float, ...] = ()
    loads: tuple[Load, ...] = ()
    load: Load = NO_LOAD
    busy: str = ""
    peak_bytes: int = 0
    live_tensor_bytes: int = 0
    cuda_peak_bytes: int | None = None
    evidence: Evidence | None = None
    failure: str = ""
    details: dict[str, Any] = Field(default_factory=dict)

    @property
    def latency_ms(self) -> float:
        """Median milliseconds per call."""
        return self.seconds * 1e3

    @property
    def counts(self) -> bool:
        """Whether the run may be half of a pair: it gave times, and nothing disturbed them."""
        return not self.failure and not self.busy


def on_common_calls(old: Run, new: Run) -> tuple[Run, Run] | None:
    """Return two runs of a sequence with the times of the calls that both of them made; None where they are too few.

    A variant that is slower makes fewer of them, and the first steps of a training may be longer than later ones. The
    new side's time is the old side's by the median ratio of the same calls. Runs of other things are returned as they
    are.
    """
    if not old.calls_s or not new.calls_s:
        return old, new
    common = sorted(old.calls_s.keys() & new.calls_s.keys())
    if len(common) < _LEAST_COMMON:
        return None
    seconds = statistics.median(old.calls_s[number] for number in common)
    ratio = math.exp(statistics.median(math.log(new.calls_s[n] / old.calls_s[n]) for n in common))
    return (
        old.model_copy(update={"seconds": seconds, "calls_s": {}}),
        new.model_copy(update={"seconds": seconds * ratio, "calls_s": {}}),
    )


class Side(Protocol):
    """One of the variants that are compared."""

    @property
    def name(self) -> str:
        """The variant's name, which no other variant of the comparison has."""

    def run(self) -> Run:
        """Measure the variant once, in a process of its own. A failure there is in the run's `failure`."""
