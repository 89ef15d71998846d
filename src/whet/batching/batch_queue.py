"""Which waiting samples make up the next batches, and when: rules without threads or a clock of their own."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from whet.batching.gathering import Answer
from whet.batching.padding import Kind, Sample


@dataclass(slots=True, eq=False)
class QueuedSample:
    """A sample that waits. kind: only samples of one kind share a batch."""

    sample: Sample
    kind: Kind
    length: int
    arrived_s: float
    future: Answer = field(default_factory=Future)


class BatchQueue:
    """Samples in the order of their arrival.

    A batch is due when max_batch samples of a kind wait, or when one has waited for max_wait_s: the time counts from
    each sample's own arrival, not from the last batch. Then everything that makes full batches goes, the longest
    samples first, and what is left over once its own time has come.
    """

    def __init__(self, max_batch: int, max_wait_s: float, *, sort_by_length: bool = True) -> None:
        self._max_batch, self._max_wait_s, self._sorts = max_batch, max_wait_s, sort_by_length
        self._kinds: dict[Kind, list[QueuedSample]] = {}  # none of the lists is empty
        self.num_taken = 0  # of batches that were taken and have not begun to run; who runs them counts down

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    @property
    def num_waiting(self) -> int:
        """The samples that have not begun to run."""
        return len(self) + self.num_taken

    def add(self, entry: QueuedSample) -> None:
        """Put a sample into the queue."""
        self._kinds.setdefault(entry.kind, []).append(entry)

    def discard(self, entry: QueuedSample) -> None:
        """Take one back, if it still waits."""
        entries = self._kinds.get(entry.kind, [])
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del self._kinds[entry.kind]

    def due_s(self) -> float | None:
        """Return when the next batch is due, which may be in the past; None while nothing waits."""
        if not self._kinds:
            return None
        oldest_s = min(entries[0].arrived_s for entries in self._kinds.values())
        is_full = any(len(entries) >= self._max_batch for entries in self._kinds.values())
        return oldest_s if is_full else oldest_s + self._max_wait_s

    def take(self, now_s: float, *, everything: bool = False) -> list[list[QueuedSample]]:
        """Remove and return the batches that are due, each of one kind; with `everything`, the rest too."""
        batches: list[list[QueuedSample]] = []
        left: dict[Kind, list[QueuedSample]] = {}
        for kind, entries in self._kinds.items():
            # Sorting is stable: those of one length stay in the order of their arrival.
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

    def clear(self) -> list[QueuedSample]:
        """Take back and return all that wait."""
        entries = [entry for entries in self._kinds.values() for entry in entries]
        self._kinds = {}
        return entries
