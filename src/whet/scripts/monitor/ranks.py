"""Hold what each rank of a training on several processes reports, and name the straggler.

All ranks' steps take equally long, since each waits for the others. So the straggler is the rank whose time outside of
communication is the longest.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt

from whet.scripts.monitor import metrics
from whet.scripts.monitor.steps import StepTotals
from whet.ui.figures import digits

_WINDOW_S = 30.0  # over which the page's figures are means
_STRAGGLES = 1.1  # times the median of the others


class RankSums(BaseModel):
    """Hold what a rank has done since it began.

    Attributes:
        communication_s: The seconds that its steps waited for other ranks; None where that was not seen.
        rss_bytes: Its resident memory now; None for not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: NonNegativeInt
    host: str
    pid: NonNegativeInt
    num_steps: NonNegativeInt
    total_s: NonNegativeFloat
    communication_s: NonNegativeFloat | None = None
    num_samples: NonNegativeInt | None = None
    num_tokens: NonNegativeInt | None = None
    rss_bytes: NonNegativeInt | None = None

    @classmethod
    def of(cls, totals: StepTotals, rank: int, host: str, pid: int, rss_bytes: int | None) -> "RankSums":
        """Return the sums of a rank's steps."""
        return cls(
            rank=rank,
            host=host,
            pid=pid,
            num_steps=totals.num_steps,
            total_s=totals.latencies.total_s,
            communication_s=totals.phases_s.get(metrics.COMMUNICATION),
            num_samples=totals.num_samples,
            num_tokens=totals.num_tokens,
            rss_bytes=rss_bytes,
        )


@dataclass(frozen=True)
class RankRow:
    """Describe one rank. A figure is None where it is not known.

    Attributes:
        own_ms: The mean time of a step outside of communication.
        waits: The share of the steps' time in which the rank waited for others, 0 to 1.
    """

    rank: int
    host: str
    pid: int
    step_ms: float | None
    own_ms: float | None
    waits: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    rss_bytes: int | None
    is_straggler: bool = False


class RankTable:
    """Hold the ranks of one run. It is thread-safe.

    What a rank has done until its first report does not count, where there are more: the first steps compile, wait for
    ranks that began later, and their waits are not seen.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._first: dict[int, RankSums] = {}
        self._reported: dict[int, deque[tuple[float, RankSums]]] = {}

    def add(self, sums: RankSums) -> None:
        """Take what a rank has done until now. Another process of the same rank begins anew."""
        with self._lock:
            reported = self._reported.setdefault(sums.rank, deque())
            if reported and reported[-1][1].pid != sums.pid:
                reported.clear()
            if not reported:
                self._first[sums.rank] = sums
            now = self._now()
            reported.append((now, sums))
            while len(reported) > 2 and reported[1][0] <= now - _WINDOW_S:
                reported.popleft()

    def sums(self) -> list[RankSums]:
        """Return what each rank has done, by rank; nothing where there are not several."""
        with self._lock:
            found = [reported[-1][1] for _, reported in sorted(self._reported.items())]
        return found if len(found) > 1 else []

    def rows(self, *, whole: bool = False) -> list[RankRow]:
        """Return the ranks' figures of the last half minute, or of the whole run; nothing where there are not several.

        Args:
            whole: Whether to take the whole run.
        """
        with self._lock:
            ends = [
                (self._first[rank] if whole else reported[0][1], reported[-1][1])
                for rank, reported in sorted(self._reported.items())
            ]
        if len(ends) < 2:
            return []
        rows = [_row(None if first.num_steps == last.num_steps else first, last) for first, last in ends]
        late = _straggler(rows)
        return [replace(row, is_straggler=row.rank == late) for row in rows]

    def straggler(self, *, whole: bool = False) -> str:
        """Say which rank the others wait for; "" where none is much slower, or waits cannot be seen."""
        rows = self.rows(whole=whole)
        late = next((row for row in rows if row.is_straggler), None)
        if late is None or late.own_ms is None:
            return ""
        usual = median(row.own_ms for row in rows if row.own_ms is not None and row is not late)
        return (
            f"rank {late.rank} on {late.host} (process {late.pid}) is the straggler: its own work takes "
            f"{digits(late.own_ms)} ms of a step, and the others' {digits(usual)} ms; they wait for it"
        )


def _row(first: RankSums | None, last: RankSums) -> RankRow:
    """Return the figures of what a rank did between two reports, or until the last one."""
    steps = last.num_steps - (first.num_steps if first else 0)
    total_s = last.total_s - (first.total_s if first else 0.0)

    def since(name: str) -> float | None:
        end = getattr(last, name)
        return None if end is None else end - ((getattr(first, name) or 0) if first else 0)

    waited_s, samples, tokens = map(since, ("communication_s", "num_samples", "num_tokens"))
    is_known = bool(steps and total_s)
    return RankRow(
        rank=last.rank,
        host=last.host,
        pid=last.pid,
        step_ms=total_s / steps * 1e3 if is_known else None,
        own_ms=max(0.0, total_s - waited_s) / steps * 1e3 if is_known and waited_s is not None else None,
        waits=min(1.0, waited_s / total_s) if is_known and waited_s is not None else None,
        samples_per_s=samples / total_s if is_known and samples is not None else None,
        tokens_per_s=tokens / total_s if is_known and tokens is not None else None,
        rss_bytes=last.rss_bytes,
    )


def _straggler(rows: list[RankRow]) -> int | None:
    own = {row.rank: row.own_ms for row in rows if row.own_ms is not None}
    if len(own) < 2:
        return None
    late = max(own, key=lambda rank: own[rank])
    return late if own[late] > _STRAGGLES * median(ms for rank, ms in own.items() if rank != late) else None


def exchanged(sums: Callable[[int], RankSums]) -> list[RankSums]:
    """Post what this rank has done for the first rank, through torch.distributed's own store.

    Args:
        sums: Returns it, given the rank.

    Returns:
        What all have posted so far, on the first rank; nothing on others, and where no ranks train together.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)  # torch may not be loaded
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    if world_size < 2:
        return []
    store = distributed.PrefixStore("whet/monitor", distributed.distributed_c10d._get_default_store())
    store.set(str(rank), sums(rank).model_dump_json())
    if rank:
        return []
    there = [str(one) for one in range(world_size) if store.check([str(one)])]
    return [RankSums.model_validate_json(text) for text in store.multi_get(there)]
