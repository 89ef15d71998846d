"""Hold what one process measured of one variant, in the form in which it is sent between processes."""

import math
import statistics
from typing import Any, Protocol

from pydantic import BaseModel, Field

from whet.measure.evidence import Evidence
from whet.measure.load import NO_LOAD, Load

_LEAST_COMMON = 3  # calls of a sequence that both sides have to have made


class Run(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Hold the result of measuring one variant once, in a process of its own.

    Attributes:
        seconds: Median seconds per call over the quiet blocks. With several different calls, the mean of their medians.
        p90_s: The 90th percentile of single calls, in seconds.
        num_calls: Timed calls.
        num_samples: Samples that one call works on.
        calls_s: Seconds of each quiet call by its number, where calls form a sequence (as training steps do). If the
            run was disturbed, the seconds of every call.
        blocks_s: Median seconds per call of each block, in order, where two variants take turns block by block.
        loads: What other processes did during each block.
        load: What other processes did during all blocks.
        busy: What disturbed too many of the blocks; "" for a quiet run.
        peak_bytes: Peak resident memory of the process.
        live_tensor_bytes: Memory of PyTorch's tensors after the last call.
        cuda_peak_bytes: Peak of the GPU's allocator; None without a GPU.
        evidence: The outputs, losses or tokens that the calls led to. They are compared with the other variant's.
        failure: Why the process gave no times; "" where it did.
        details: Further facts about a kind of workload, for the code that measures it.
    """

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
        return self.seconds * 1e3

    @property
    def counts(self) -> bool:
        """Return whether the run may be half of a pair: it gave times, and nothing disturbed them."""
        return not self.failure and not self.busy


def on_common_calls(old: Run, new: Run) -> tuple[Run, Run] | None:
    """Return two runs of a sequence with the times of the calls that both of them made.

    A slower variant makes fewer calls, and the first steps of a training may take longer than later ones. The new
    side's time is the old side's time multiplied by the median ratio of the same calls. Runs whose calls form no
    sequence are returned unchanged. Return None where fewer than three calls are common.
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
    """Represent one of the variants that are compared."""

    @property
    def name(self) -> str:
        """Return the variant's name. Names are unique within a comparison."""

    def run(self) -> Run:
        """Measure the variant once, in a process of its own. The run's `failure` reports a failure there."""
