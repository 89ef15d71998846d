"""Decide which waiting samples form the next batches, and when. This module has no thread and no clock of its own."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from whet.server.batching.gathering import Answer
from whet.server.batching.padding import Kind, Sample


@dataclass(slots=True, eq=False)
class QueuedSample:
    """Hold a sample that waits. Only samples of one kind share a batch. `length` sorts them; 0 if there is none."""

    sample: Sample
    kind: Kind
    length: int
    arrived_s: float
    future: Answer = field(default_factory=Future)
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_bytes = self.sample.num_bytes


class BatchQueue:
    """Hold samples in the order of their arrival, and form batches of them.

    A batch is due when max_batch samples of a kind wait, or when one sample has waited for max_wait_s seconds since its
    own arrival. Then all full batches are taken, with `sort_by_length` the longest samples first. The remaining samples
    are taken once one of them has waited for max_wait_s.
    """

    def __init__(self, max_batch: int, max_wait_s: float, *, sort_by_length: bool = True) -> None:
        self._max_batch, self._max_wait_s, self._sorts = max_batch, max_wait_s, sort_by_length
        self._kinds: dict[Kind, list[QueuedSample]] = {}  # never holds an empty list
        self.num_taken = 0  # samples that were taken and do not run yet; `begin` subtracts them
        self.num_bytes = 0  # of all samples that do not run yet

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    @property
    def num_waiting(self) -> int:
        """Return the number of samples that do not run yet."""
        return len(self) + self.num_taken

    def add(self, entry: QueuedSample) -> None:
        self._kinds.setdefault(entry.kind, []).append(entry)
        self.num_bytes += entry.num_bytes

    def discard(self, entry: QueuedSample) -> None:
        """Remove a sample, if it still waits."""
        entries = self._kinds.get(entry.kind, [])
        if entry in entries:
            entries.remove(entry)
            self.num_bytes -= entry.num_bytes
            if not entries:
                del self._kinds[entry.kind]

    def due_s(self) -> float | None:
        """Return when the next batch is due, in seconds, maybe in the past, or None while nothing waits."""
        if not self._kinds:
            return None
        oldest_s = min(entries[0].arrived_s for entries in self._kinds.values())
        is_full = any(len(entries) >= self._max_batch for entries in self._kinds.values())
        return oldest_s if is_full else oldest_s + self._max_wait_s

    def take(self, now_s: float, *, everything: bool = False) -> list[list[QueuedSample]]:
        """Remove and return the batches that are due, each of one kind. With `everything`, also take all others."""
        batches: list[list[QueuedSample]] = []
        left: dict[Kind, list[QueuedSample]] = {}
        for kind, entries in self._kinds.items():
            # Sorting is stable: samples of equal length stay in the order of their arrival.
            in_order = sorted(entries, key=lambda entry: -entry.length) if self._sorts else entries
            for start in range(0, len(in_order), self._max_batch):
                batch = in_order[start : start + self._max_batch]
                is_due = any(entry.arrived_s + self._max_wait_s <= now_s for entry in batch)
                if len(batch) == self._max_batch or is_due or everything:
                    batches.append(batch)
                else:
                    left[kind] = sorted(batch, key=lambda entry: entry.arrived_s)
        self._kinds = left
        self.num_taken += sum(map(len, batches))
        return batches

    def begin(self, batch: Sequence[QueuedSample]) -> None:
        """Count samples that were taken no longer: they run now, or are given up."""
        self.num_taken -= len(batch)
        self.num_bytes -= sum(entry.num_bytes for entry in batch)

    def clear(self) -> list[QueuedSample]:
        """Remove and return all samples that wait."""
        entries = [entry for entries in self._kinds.values() for entry in entries]
        self._kinds = {}
        self.num_bytes -= sum(entry.num_bytes for entry in entries)
        return entries
