"""Count what a batcher has done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whet.server.batching.batch_queue import QueuedSample


@dataclass(frozen=True)
class BatcherStats:
    """Hold the statistics of a batcher since it was made.

    Attributes:
        num_samples: Samples that ran.
        batch_sizes: From a size to the number of batches of this size.
        mean_wait_ms: The mean time from a sample's arrival to the start of its batch, in milliseconds.
        longest_wait_ms: The longest such time, in milliseconds.
        padding: The share of the elements given to the model that were padding, 0 to 1.
        num_waiting: Samples that do not run yet.
        num_failed: Samples whose batch raised an exception.
        num_refused: Samples that were refused because too many were waiting.
    """

    num_samples: int
    num_batches: int
    batch_sizes: dict[int, int]
    mean_wait_ms: float
    longest_wait_ms: float
    padding: float
    num_waiting: int
    num_failed: int
    num_cancelled: int
    num_refused: int
    wait_s: float = 0.0


class Totals:
    """Add up what BatcherStats says. The batcher's lock guards it."""

    def __init__(self) -> None:
        self.batch_sizes: Counter[int] = Counter()
        self.wait_s = self.longest_wait_s = 0.0
        self.num_elements = self.num_padding = 0
        self.num_failed = self.num_cancelled = self.num_refused = 0

    def begin(self, begun: Sequence[QueuedSample], now_s: float) -> None:
        """Count a batch that begins to run at `now_s`, in seconds of the batcher's clock."""
        waits_s = [now_s - entry.arrived_s for entry in begun]
        self.wait_s += sum(waits_s)
        self.longest_wait_s = max(self.longest_wait_s, *waits_s, 0.0)
        if begun:
            self.batch_sizes[len(begun)] += 1

    def stats(self, num_waiting: int) -> BatcherStats:
        num_samples = sum(size * count for size, count in self.batch_sizes.items())
        return BatcherStats(
            num_samples=num_samples,
            num_batches=self.batch_sizes.total(),
            batch_sizes=dict(sorted(self.batch_sizes.items())),
            mean_wait_ms=self.wait_s / num_samples * 1e3 if num_samples else 0.0,
            longest_wait_ms=self.longest_wait_s * 1e3,
            padding=self.num_padding / self.num_elements if self.num_elements else 0.0,
            num_waiting=num_waiting,
            num_failed=self.num_failed,
            num_cancelled=self.num_cancelled,
            num_refused=self.num_refused,
            wait_s=self.wait_s,
        )
