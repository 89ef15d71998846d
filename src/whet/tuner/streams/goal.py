"""Say what tuning a stream is to reach."""

from dataclasses import dataclass

from whet.errors import OptionError
from whet.measure.on_busy import WAIT_S, OnBusy
from whet.tuner.goal import MAX_DROP

DEFAULT_BUDGET_S = 900.0


@dataclass(frozen=True, kw_only=True)
class StreamGoal:
    """Say what tuning a stream is to reach.

    Attributes:
        frame_budget_s: Seconds that a frame may take: then the best quality within them is looked for. None looks for
            the most frames of the same quality.
        max_drop: The allowed drop in quality, as a fraction of the original's.
        budget_s: Seconds for the whole search. Waiting for a quiet machine comes on top.
        exclude: Techniques that are not tried on the models.
        on_busy: What to do on a busy machine; see `whet.tune`.
        busy_wait_s: Seconds to wait for a quiet machine in all.

    Raises:
        OptionError: A number is out of its range.
    """

    frame_budget_s: float | None = None
    max_drop: float = MAX_DROP
    budget_s: float = DEFAULT_BUDGET_S
    exclude: tuple[str, ...] = ()
    on_busy: str = OnBusy.WAIT
    busy_wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        OnBusy.checked(self.on_busy)
        if self.frame_budget_s is not None and not self.frame_budget_s > 0:
            raise OptionError(f"--frame-budget is a time above 0, as 40ms; got {self.frame_budget_s:g} s")
        if not 0 <= self.max_drop < 1:
            raise OptionError(f"--max-drop is a fraction from 0 to below 1; got {self.max_drop:g}")
        if not self.budget_s > 0:
            raise OptionError(f"--budget is a time above 0, as 10m; got {self.budget_s:g} s")
