"""Describe what a search is to reach, and within which limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.errors import OptionError
from whet.tuner.records import TrialRecord
from whet.tuner.result import Objective


@dataclass(frozen=True)
class Goal:
    """Hold what the user wants from a search. `value` is minimised; a variant beyond a limit is rejected.

    Attributes:
        objective: "latency", "throughput", "memory" or "size".
        max_drop: The allowed drop in quality, as a fraction of the original's.
        max_memory_bytes: The allowed peak memory of the process; None for any.
    """

    objective: Objective = "latency"
    max_drop: float = 0.01
    max_memory_bytes: int | None = None

    @classmethod
    def checked(cls, objective: str, max_drop: float, max_memory_bytes: int | None, budget_s: float) -> "Goal":
        """Return a goal.

        Raises:
            OptionError: No search can reach such a goal, or the budget is not positive.
        """
        if objective not in ("latency", "throughput", "memory", "size"):
            raise OptionError(f"objective must be latency, throughput, memory or size, not {objective!r}")
        if not 0 <= max_drop < 1:
            raise OptionError(f"max_drop must lie in [0, 1): 0.01 allows one percent; got {max_drop}")
        if max_memory_bytes is not None and max_memory_bytes <= 0:
            raise OptionError("max_memory must be more than 0 bytes")
        if budget_s <= 0:
            raise OptionError("the budget must be more than 0 seconds")
        return cls(objective, max_drop, max_memory_bytes)  # type: ignore[arg-type]

    @property
    def asks_for_speed(self) -> bool:
        """Return whether the objective is latency or throughput."""
        return self.objective in ("latency", "throughput")

    def value(self, record: TrialRecord) -> float | None:
        """Return a trial's figure for the objective, where lower is better; None where the trial has none.

        For latency and throughput it is the negative logarithm of the speedup; for memory and size it is in bytes.
        """
        if self.asks_for_speed:
            return -math.log(record.speedup) if record.speedup else None
        return (
            float(record.peak_bytes or math.inf) if self.objective == "memory" else float(record.size_bytes or math.inf)
        )

    @property
    def needs_memory(self) -> bool:
        """Return whether every trial's memory has to be measured, in one more process each."""
        return self.objective == "memory" or self.max_memory_bytes is not None


def ranked(goal: Goal, records: Sequence[TrialRecord], *, status: str = "done") -> list[TrialRecord]:
    """Return the trials of a status that have a figure for the objective, best first.

    Of two equal ones, the faster comes first, then the earlier.
    """
    valued = [(goal.value(r), r) for r in records if r.status == status]
    keyed = [((value, -(r.speedup or 0.0), r.number), r) for value, r in valued if value is not None]
    return [r for _, r in sorted(keyed, key=lambda pair: pair[0])]
