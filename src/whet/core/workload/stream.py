"""Describe a model that turns one stream of frames into another within a time budget, and is to be made fast."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from whet.errors import TargetError

Step = Callable[[Tensor], Tensor | None]
"""Take one frame, [C, H, W] with values from 0 to 1, and return one of any size, or None.

State may be kept from frame to frame. Answers come in the order of the frames, one for each. A step that works on
several frames at once returns None until the first is ready. Then each call returns the answer to an earlier frame.
Such a step has an attribute `in_flight`, the number of frames that have no answer yet, and a method `advance()`, which
goes on with them without a new frame and returns what a call returns. A method `reset()` forgets all frames; a stream
calls it after a warm-up and before each new viewer. `change(steps)`, with an attribute `steps`, discards what is in
flight and goes on with so many steps a frame, and `scales` names the sizes that the step can run at, as shares of the
full one from 1 down: with these, a stream that misses its budget can do less for each frame.
"""


@dataclass(frozen=True, kw_only=True)
class StreamWorkload:
    """Describe a stream: what computes a frame from a frame, the frames that come in, and the time that each may take.

    One measured call is one frame. Its evidence is the frames that come out. A stream has state, so each variant is
    built anew and sees all frames in order. Two variants agree as long as their frames do. Small differences that add
    up over the stream show as drift.

    Attributes:
        open: Builds the stream's model, with fresh state. It is called again where a step without `reset` begins anew.
        frames: The frames that come in: tensors [C, H, W]. Each iteration yields the same ones in the same order.
        frame_budget_s: Seconds that a frame may take; None for no limit.
        name: The name shown to people.

    Raises:
        TargetError: `open` cannot be called, or the budget is not positive.
    """

    open: Callable[[], Step]
    frames: Iterable[Tensor]
    frame_budget_s: float | None = None
    name: str = "stream"

    def __post_init__(self) -> None:
        if not callable(self.open):
            raise TargetError("open must be a function that builds the stream's model")
        if self.frame_budget_s is not None and self.frame_budget_s <= 0:
            raise TargetError(f"frame_budget_s must be positive; got {self.frame_budget_s}")
