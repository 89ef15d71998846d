"""Say what tuning a stream is to reach, and who is told of the progress."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from whet.errors import OptionError
from whet.measure.on_busy import WAIT_S, OnBusy
from whet.tuner.goal import MAX_DROP

if TYPE_CHECKING:  # the command line reads names and limits here before torch is imported
    from whet.stream_tuner.search import Trial
    from whet.tuner.listener import Listener

DEFAULT_BUDGET_S = 900.0


class StreamListener:
    """Watch the progress. Each method does nothing here; the command line overrides them."""

    def says(self, sentence: str) -> None:
        """Note what was found or decided."""

    def tried(self, trial: "Trial") -> None:
        """Note that a setting was judged or timed."""

    def tuning(self, name: str, budget_s: float) -> "Listener":
        """Note that the search for one model begins, and return who watches it."""
        from whet.tuner.listener import Listener

        return Listener()

    def waiting(self, text: str) -> None:
        """Note that the machine is busy and whet waits for quiet. The text is "" once it goes on."""

    def measured(self, rounds_done: int, rounds: int) -> None:
        """Note that a round of the final comparison has ended."""


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
