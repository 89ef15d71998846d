"""Compute unions, intersections and differences of sets of time intervals, in whole nanoseconds.

The time that a GPU was busy is the length of a union. The time that two things overlap is the length of an
intersection. The time that one thing runs alone is the length of a difference.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Intervals:
    """Hold disjoint half-open intervals [start, end) in order. None is empty, and none touches the next.

    Build it with `union`. The operators |, & and - return Intervals. Starts and ends are int64, [N].
    """

    starts_ns: Times
    ends_ns: Times

    @property
    def length_ns(self) -> int:
        """Return the total length of all intervals."""
        return int((self.ends_ns - self.starts_ns).sum())

    def __len__(self) -> int:
        return len(self.starts_ns)

    def __or__(self, other: "Intervals") -> "Intervals":
        return self._combined(other, np.logical_or)

    def __and__(self, other: "Intervals") -> "Intervals":
        return self._combined(other, np.logical_and)

    def __sub__(self, other: "Intervals") -> "Intervals":
        return self._combined(other, lambda mine, theirs: mine & ~theirs)

    def lengths_ns(self, starts_ns: Times, ends_ns: Times) -> Times:
        """Return for each [start, end) how much of it lies in these intervals."""
        return self._length_before(ends_ns) - self._length_before(starts_ns)

    def holds(self, moments_ns: Times) -> Mask:
        """Return for each moment whether it is in one of the intervals."""
        if not len(self):
            return np.zeros(len(moments_ns), bool)
        before = np.searchsorted(self.starts_ns, moments_ns, side="right") - 1
        return (before >= 0) & (moments_ns < self.ends_ns[before])

    def _length_before(self, moments_ns: Times) -> Times:
        index = np.searchsorted(self.starts_ns, moments_ns, side="left")
        whole = np.concatenate([[0], np.cumsum(self.ends_ns - self.starts_ns)]).astype(np.int64)
        last_end = np.concatenate([[np.iinfo(np.int64).min], self.ends_ns])[index]
        inside: Times = np.maximum(last_end - np.minimum(moments_ns, last_end), 0)
        return np.asarray(whole[index] - inside, np.int64)

    def _combined(self, other: "Intervals", keep: Callable[[Mask, Mask], Mask]) -> "Intervals":
        cuts = np.unique(np.concatenate([self.starts_ns, self.ends_ns, other.starts_ns, other.ends_ns]))
        if not len(cuts):
            return EMPTY
        pieces = cuts[:-1]  # between two cuts, each set covers everything or nothing
        kept = keep(self.holds(pieces), other.holds(pieces))
        edges = np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8))
        return Intervals(cuts[np.flatnonzero(edges == 1)], cuts[np.flatnonzero(edges == -1)])


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts_ns: Times, ends_ns: Times) -> Intervals:
    """Return the moments in any of the intervals. They may overlap, come in any order, and be empty."""
    real = ends_ns > starts_ns
    starts, ends = starts_ns[real].astype(np.int64), ends_ns[real].astype(np.int64)
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    begins = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(starts) - 1]])
    return Intervals(starts[begins], reach[last])


def span(start_ns: int, end_ns: int) -> Intervals:
    return union(np.array([start_ns]), np.array([end_ns]))
