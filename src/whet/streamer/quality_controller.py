"""Choose how much work a frame gets, so that a stream keeps its budget: fewer steps, smaller frames, skipped frames.

The rule is the same for every model. A stream goes one level down when more than a tenth of its newest frames took
longer than the budget. It goes up again when the level above is expected to fit, from how long it took before and how
much faster or slower the machine has become since. Each return that fails doubles the wait before the next.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from whet.errors import OptionError
from whet.ui.figures import percent

WINDOW = 24  # frames that a decision rests on
_LATE_SHARE = 0.1  # a level fits while at most this share of the window is late
_ROOM = 0.85  # a level above is tried where its expected time is below this share of the budget
_FIRST_WAIT = 2 * WINDOW
_LONGEST_WAIT = 64 * WINDOW


@dataclass(frozen=True)
class Level:
    """Describe how much work a frame gets.

    Attributes:
        steps: Steps of the sampler; None where the model has no such choice.
        scale: Height and width, as a share of the stream's own.
        every: One frame of so many is computed. The others repeat it.
    """

    steps: int | None = None
    scale: float = 1.0
    every: int = 1

    @property
    def work(self) -> float:
        """Return the steps of a computed frame times its pixels, as a share of the full size."""
        return (self.steps or 1) * self.scale**2

    def __str__(self) -> str:
        steps = [] if self.steps is None else [f"{self.steps} step" + "s" * (self.steps > 1)]
        scale = [] if self.scale == 1 else [f"frames of {percent(self.scale, decimals=0)} height and width"]
        every = [] if self.every == 1 else [f"one frame of {self.every} computed"]
        return ", ".join(steps + scale + every) or "all frames computed"


def levels_of(steps: int | None, scales: Sequence[float] = (1.0,), longest_gap: int = 4) -> list[Level]:
    """Return the levels from most to least work: first fewer steps, then smaller frames, then skipped frames.

    Args:
        steps: The steps of the best level; None for a model without steps.
        scales: The sizes that the model can run at, as shares, largest first.
        longest_gap: The last level computes one frame of so many.

    Raises:
        OptionError: The steps or the gap are below 1, or the scales don't fall.
    """
    if (steps is not None and steps < 1) or longest_gap < 1:
        raise OptionError(f"a frame takes at least 1 step; got {steps} steps, and one frame of {longest_gap}")
    if list(scales) != sorted(set(scales), reverse=True) or not scales or not 0 < scales[-1] <= scales[0] <= 1:
        raise OptionError(f"sizes fall from at most 1; got {list(scales)}")
    counts: list[int | None] = [steps]
    while (fewer := counts[-1]) is not None and fewer > 1:
        counts.append(fewer // 2)
    levels = [Level(count, scales[0]) for count in counts]
    levels += [Level(counts[-1], scale) for scale in scales[1:]]
    return levels + [Level(counts[-1], scales[-1], gap) for gap in range(2, longest_gap + 1)]


class Controller:
    """Decide after each frame whether the stream changes its level. The levels go from most to least work."""

    def __init__(self, levels: Sequence[Level], budget_s: float) -> None:
        if not levels or not budget_s > 0:
            raise OptionError(f"a budget above 0 seconds and one level are needed; got {budget_s} and {len(levels)}")
        self._levels, self._budget_s = list(levels), budget_s
        self._at = 0
        self._newest: deque[float] = deque(maxlen=WINDOW)
        self._wait = _FIRST_WAIT
        self._since_change = 0
        self._has_returned = False
        self._above: dict[int, float] = {}  # level -> how many times longer a frame takes one level above it
        self._median_above_s: float | None = None  # of the level that was left, until its ratio is known

    @property
    def level(self) -> Level:
        return self._levels[self._at]

    def add(self, frame_s: float) -> Level | None:
        """Count one computed frame that took `frame_s` seconds, and return the new level where it changes."""
        self._newest.append(frame_s)
        self._since_change += 1
        if self._since_change == WINDOW:
            self._learn_ratio()
        budget_s = self._budget_s * self.level.every  # where frames are skipped, a computed one has their time too
        late = sum(time > budget_s for time in self._newest)
        if late > _LATE_SHARE * WINDOW and self._at + 1 < len(self._levels):
            return self._down()
        if self._at and self._since_change >= self._wait and not late and self._fits_above():
            return self._up()
        if self._has_returned and self._since_change >= self._wait:
            self._has_returned, self._wait = False, _FIRST_WAIT
        return None

    def _learn_ratio(self) -> None:
        """Compute how many times longer a frame takes one level above, from the frames before and after the change."""
        if self._median_above_s is not None and self._newest:
            self._above[self._at] = self._median_above_s / max(statistics.median(self._newest), 1e-9)
            self._median_above_s = None

    def _fits_above(self) -> bool:
        above = self._levels[self._at - 1]
        # The load may have changed at the same time as the level, so that the ratio seen is too high. A frame's cost
        # grows at most as its steps and pixels do.
        most = above.work / self.level.work
        expected_s = statistics.median(self._newest) * min(self._above.get(self._at, most), most)
        return expected_s < _ROOM * self._budget_s * above.every

    def _down(self) -> Level:
        if self._has_returned:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._learn_ratio()
        self._median_above_s = statistics.median(self._newest)
        self._at += 1
        return self._changed(has_returned=False)

    def _up(self) -> Level:
        self._median_above_s = None
        self._at -= 1
        return self._changed(has_returned=True)

    def _changed(self, *, has_returned: bool) -> Level:
        self._has_returned = has_returned
        self._newest.clear()
        self._since_change = 0
        return self.level
