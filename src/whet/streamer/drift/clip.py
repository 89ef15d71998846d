"""Order the frames of a clip so that a drift test shows the same scenes at its end as at its beginning."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def there_and_back(clip: Sequence[Item], num_frames: int) -> Iterator[Item]:
    """Yield the frames of a clip forwards and backwards, so that the whole reads the same from both ends.

    No cut is added: a clip of more than half of the frames is walked half the way and back, and a shorter one is walked
    to and fro. A stream whose faithfulness depends on the scene is then the same at both ends, unless it drifts.

    Raises:
        ValueError: The clip is empty.
    """
    if not clip:
        raise ValueError("a clip has at least one frame")
    around = max(1, 2 * len(clip) - 2)
    for index in range(num_frames):
        place = min(index, num_frames - 1 - index) % around
        yield clip[min(place, around - place)]
