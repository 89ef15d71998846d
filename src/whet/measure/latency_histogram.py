"""Compute percentiles of any number of times in a fixed amount of memory, with buckets that grow by 2%.

A percentile is right to within 1%, whatever the distribution. Count, sum, smallest and largest are exact.
Source: the relative-error buckets of DDSketch (Masson, Rim and Lee, VLDB 2019), with fixed ends.
"""

import math
from collections.abc import Iterable, Mapping

_GROWTH = 1.02
_SHORTEST_S = 1e-6
_NUM_BUCKETS = 1200  # up to 2.1e4 seconds; longer times go into the last bucket
_LOG_GROWTH = math.log(_GROWTH)


class LatencyHistogram:
    """Count times in seconds. It is not thread-safe: a lock must protect one that is shared.

    Without times, `shortest_s` is infinity and `longest_s` is 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.shortest_s = math.inf
        self.longest_s = 0.0
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one time, or raise ValueError if it is negative or NaN."""
        if not seconds >= 0:
            raise ValueError(f"a time cannot be {seconds} s")
        bucket = 0
        if seconds > _SHORTEST_S:
            bucket = min(int(math.log(seconds / _SHORTEST_S) / _LOG_GROWTH) + 1, _NUM_BUCKETS)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_s += seconds
        if seconds < self.shortest_s:
            self.shortest_s = seconds
        if seconds > self.longest_s:
            self.longest_s = seconds

    def merge(self, other: "LatencyHistogram") -> None:
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += other.count
        self.total_s += other.total_s
        self.shortest_s = min(self.shortest_s, other.shortest_s)
        self.longest_s = max(self.longest_s, other.longest_s)

    def percentile_s(self, percent: float) -> float | None:
        """Return a percentile (0 to 100) in seconds, within 1%; None if nothing was counted."""
        if not self.count:
            return None
        rank, seen = percent / 100 * (self.count - 1), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen > rank:
                return min(max(_middle_s(bucket), self.shortest_s), self.longest_s)
        return self.longest_s

    def cumulative(self, bounds_s: Iterable[float]) -> list[int]:
        """Return how many times were at most as long as each bound, exact to a bucket, as Prometheus needs it."""
        return [sum(n for bucket, n in self._counts.items() if _middle_s(bucket) <= bound) for bound in bounds_s]

    def to_json(self) -> dict[str, object]:
        """Return the histogram as a JSON-serialisable dict, with only the buckets in use."""
        return {
            "counts": {str(bucket): count for bucket, count in self._counts.items()},
            "total_s": self.total_s,
            "shortest_s": self.shortest_s if self.count else 0.0,
            "longest_s": self.longest_s,
        }

    @classmethod
    def from_counts(
        cls, counts: Mapping[int, int], total_s: float, shortest_s: float, longest_s: float
    ) -> "LatencyHistogram":
        """Build the histogram that `to_json` wrote, or raise ValueError where a bucket or a count is invalid."""
        if not all(0 <= bucket <= _NUM_BUCKETS and count > 0 for bucket, count in counts.items()):
            raise ValueError("no such bucket")
        histogram = cls()
        histogram._counts = dict(counts)
        histogram.count = sum(counts.values())
        if histogram.count:
            histogram.total_s, histogram.shortest_s, histogram.longest_s = total_s, shortest_s, longest_s
        return histogram


def _middle_s(bucket: int) -> float:
    """Return the geometric middle of a bucket in seconds."""
    return _SHORTEST_S * _GROWTH ** (bucket - 0.5) if bucket else _SHORTEST_S
