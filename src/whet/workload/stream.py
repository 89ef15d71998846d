"""A model that turns a stream of frames into another, inside a time budget, to be made fast."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from whet.errors import TargetError

Step = Callable[[Tensor], Tensor]
"""Takes one frame and returns one frame. It may keep state from frame to frame."""


@dataclass(frozen=True, kw_only=True)
class StreamWorkload:
    """A stream: what makes a frame from a frame, the frames that come in, and the time that each may take.

    One measured call is one frame. Its evidence are the frames that come out. A stream has state, so a variant is
    built anew, and sees all frames in order. Two variants agree as far as their frames do; where small differences add
    up over the stream, that shows as drift.

    Attributes:
        open: Builds the stream's model, with fresh state; called once in each process.
        frames: The frames that come in, the same ones in the same order each time they are iterated: tensors [C, H, W].
        frame_budget_s: Seconds that a frame may take; None for no limit.
        name: What people read.

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
