"""Describe what a search is to reach, and within which limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from whet.errors import OptionError

if TYPE_CHECKING:  # the command line reads names and limits here before torch is imported
    from whet.tuner.records import TrialRecord

Objective = Literal["latency", "throughput", "memory", "size"]

MAX_DROP = 0.01
MAX_DROP_TRAINING = 0.0025  # of the held-out loss: what fp8 may cost beside bf16 in DeepSeek-V3 (arXiv:2412.19437)
MAX_SLOWDOWN = 1.3
BUDGET_S = 300.0
SCRIPT_STEPS = 40  # optimiser steps of each run of a script


@dataclass(frozen=True)
class Goal:
    """Hold what the user wants from a search. `value` is minimised; a variant beyond a limit is rejected.

    Attributes:
        objective: "latency", "throughput", "memory" or "size"; for a stream also "quality" within a time of a frame.
        max_drop: The allowed drop in quality, as a fraction of the original's.
        max_memory_bytes: The allowed peak memory of the process, or of a training's step; None for any.
        max_slowdown: For memory in training: how many times the original's time a step may take.
        allow_batch: For training: whether larger batches are measured too.
        is_default_drop: Whether the user left the allowed drop to whet.
        limits_slowdown: Whether what saves memory may take `max_slowdown` times as long at most, as in a training.
    """

    objective: Objective | Literal["quality"] = "latency"
    max_drop: float = MAX_DROP
    max_memory_bytes: int | None = None
    max_slowdown: float = MAX_SLOWDOWN
    is_default_drop: bool = False
    allow_batch: bool = False
    limits_slowdown: bool = False

    @classmethod
    def checked(
        cls,
        objective: str,
        max_drop: float | None,
        max_memory_bytes: int | None,
        budget_s: float,
        max_slowdown: float = MAX_SLOWDOWN,
        *,
        allow_batch: bool = False,
    ) -> "Goal":
        """Return a goal.

        Raises:
            OptionError: No search can reach such a goal, or the budget is not positive.
        """
        if objective not in get_args(Objective):
            raise OptionError(f"objective must be latency, throughput, memory or size, not {objective!r}")
        if not 0 < max_slowdown < math.inf:
            raise OptionError(
                "max_slowdown must be more than 0: 1.3 allows 30 % more time than the original takes, 0.5 asks for "
                f"half of it; got {max_slowdown}"
            )
        is_default = max_drop is None
        max_drop = MAX_DROP if max_drop is None else max_drop
        if not 0 <= max_drop < 1:
            raise OptionError(f"max_drop must lie in [0, 1): 0.01 allows one percent; got {max_drop}")
        if max_memory_bytes is not None and max_memory_bytes <= 0:
            raise OptionError("max_memory must be more than 0 bytes")
        if budget_s <= 0:
            raise OptionError("the budget must be more than 0 seconds")
        return cls(objective, max_drop, max_memory_bytes, max_slowdown, is_default, allow_batch)  # type: ignore[arg-type]

    def check_for_model(self) -> None:
        """Check that nothing is asked for that only a training has.

        Raises:
            OptionError: Something is.
        """
        if self.allow_batch:
            raise OptionError("allow_batch goes with a training; whet bench measures a model at many batch sizes")

    def for_training(self) -> "Goal":
        """Return the goal for a training run, whose objectives are throughput and memory.

        Raises:
            OptionError: The objective is another one.
        """
        if self.objective == "size":
            raise OptionError("a training has no size to improve: objective must be throughput or memory")
        objective: Objective | Literal["quality"] = "throughput" if self.asks_for_speed else self.objective
        max_drop = MAX_DROP_TRAINING if self.is_default_drop else self.max_drop
        return replace(self, objective=objective, max_drop=max_drop, limits_slowdown=True)

    @property
    def most_slowdown(self) -> float:
        """Return how many times the original's time a variant that saves memory may take."""
        return self.max_slowdown if self.limits_slowdown else math.inf

    @property
    def asks_for_speed(self) -> bool:
        return self.objective in ("latency", "throughput")

    def value(self, record: "TrialRecord") -> float | None:
        """Return a trial's figure for the objective, where lower is better; None where the trial has none.

        For latency and throughput it is the negative logarithm of the speedup; for memory and size it is in bytes.
        """
        if self.asks_for_speed:
            return -math.log(record.speedup) if record.speedup else None
        if self.objective == "quality":
            return None if record.quality is None else -record.quality
        return (
            float(record.peak_bytes or math.inf) if self.objective == "memory" else float(record.size_bytes or math.inf)
        )

    @property
    def least_speedup(self) -> float:
        """Return the speedup that a step needs at least, where memory is to be saved; 0 where any will do.

        Those that may be slower than the original need none: another technique can make good what one of them costs.
        """
        is_asked = self.objective == "memory" and self.max_slowdown < 1
        return 1 / self.max_slowdown if is_asked else 0.0

    @property
    def needs_memory(self) -> bool:
        """Return whether every trial's memory has to be measured, in one more process each."""
        return self.objective == "memory" or self.max_memory_bytes is not None


def ranked(goal: Goal, records: "Sequence[TrialRecord]", *, status: str = "done") -> "list[TrialRecord]":
    """Return the trials of a status that have a figure for the objective: best first, then faster, then earlier."""
    valued = [(goal.value(r), r) for r in records if r.status == status]
    keyed = [((value, -(r.speedup or 0.0), r.number), r) for value, r in valued if value is not None]
    return [r for _, r in sorted(keyed, key=lambda pair: pair[0])]
