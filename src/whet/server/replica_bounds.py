"""Read how many replicas serve the same, on this machine or on Ray."""

from typing import NamedTuple

from whet.errors import OptionError

_MOST = 10_000  # replicas; more is a slip


class Bounds(NamedTuple):
    """Hold the fewest and the most replicas. Ray Serve scales between them by the load, if they differ."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least}-{self.most}"


ONE = Bounds(1, 1)


def bounds(text: str) -> Bounds:
    """Return the numbers of replicas in "3" or "2-8".

    Raises:
        OptionError: It is neither, or the second number is smaller.
    """
    first, dash, second = text.strip().partition("-")
    numbers = [first, second] if dash else [first, first]
    if not all(one.isascii() and one.isdigit() and 1 <= int(one) <= _MOST for one in numbers):
        raise OptionError(f"--replicas {text!r}: write a number from 1 on, or with --ray the bounds of scaling, as 2-8")
    found = Bounds(int(numbers[0]), int(numbers[1]))
    if found.most < found.least:
        raise OptionError(f"--replicas {text!r}: the second number is the most, and is not below the first")
    return found
