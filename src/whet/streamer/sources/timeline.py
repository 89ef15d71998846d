"""Turn the timestamps of a file into times that start at 0 and never decrease."""

from collections import Counter
from fractions import Fraction

_JUMP_S = 1  # a step back by more is a new beginning, as where recordings were joined; a smaller one is disorder


class Timeline:
    """Turn presentation timestamps into seconds since the first frame.

    Timestamps in order are kept exactly. A frame without one follows the frame before it by one period. A timestamp
    that goes back by at most 1 s is replaced by the time of the frame before. One that goes back further starts a new
    part, which follows by one period; the distances within that part are kept.

    Args:
        rate: The stream's frames a second, which gives the period; None for a period of 0.
        problems: Counts what was mended.
    """

    def __init__(self, rate: Fraction | None, problems: Counter[str]) -> None:
        self._period = 1 / rate if rate else Fraction(0)
        self._problems = problems
        self._offset: Fraction | None = None  # what is added to a timestamp; None before the first timestamp
        self._last: Fraction | None = None

    def time_s(self, timestamp: Fraction | None) -> float:
        """Return a frame's seconds since the first one. Its presentation timestamp, in seconds, may be None."""
        due = Fraction(0) if self._last is None else self._last + self._period
        if timestamp is None:
            self._problems["frames without a timestamp"] += 1
            moment = due
        elif self._offset is None:
            self._offset = due - timestamp
            moment = due
        else:
            moment = self._mended(timestamp + self._offset, due)
        self._last = moment
        return float(moment)

    def _mended(self, moment: Fraction, due: Fraction) -> Fraction:
        assert self._last is not None
        assert self._offset is not None
        if moment >= self._last:
            return moment
        self._problems["timestamps that go back"] += 1
        if self._last - moment <= _JUMP_S:
            return self._last
        self._offset += due - moment
        return due
