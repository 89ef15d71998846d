"""Store measured rows over time in bounded memory: the latest ones in full, the whole run with fewer, wider rows.

The latest rows are in a ring. Every row also goes into the history. When the history is full, each two neighbours are
merged, and from then on each of its rows covers twice the time. A day takes as much memory as ten minutes.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

RECENT_ROWS = 900
HISTORY_ROWS = 512


class Cell(NamedTuple):
    """Hold one measured value of a stretch of time. Cells merge by `weight`, in seconds or steps, above 0."""

    mean: float
    low: float
    high: float
    weight: float = 1.0

    @classmethod
    def of(cls, value: float, weight: float = 1.0) -> "Cell":
        return cls(value, value, value, weight)

    def merged(self, other: "Cell") -> "Cell":
        weight = self.weight + other.weight
        mean = (self.mean * self.weight + other.mean * other.weight) / weight
        return Cell(mean, min(self.low, other.low), max(self.high, other.high), weight)


@dataclass(frozen=True)
class Row:
    """Hold what was measured between two moments, in seconds since the run began. An absent key was not measured."""

    began_s: float
    ended_s: float
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def merged(self, later: "Row") -> "Row":
        cells = dict(self.cells)
        for key, cell in later.cells.items():
            cells[key] = cells[key].merged(cell) if key in cells else cell
        return Row(self.began_s, later.ended_s, cells)


class Series:
    """Store the rows of a run. It is not thread-safe: a lock must protect one that is shared.

    Args:
        recent_rows: How many of the latest rows to keep in full.
        history_rows: How many rows to keep of the whole run; an even number.
    """

    def __init__(self, recent_rows: int = RECENT_ROWS, history_rows: int = HISTORY_ROWS) -> None:
        if recent_rows < 1 or history_rows < 2 or history_rows % 2:
            raise ValueError("recent_rows must be 1 or more, and history_rows an even number of 2 or more")
        self.num_rows = 0
        self._recent: deque[Row] = deque(maxlen=recent_rows)
        self._history: list[Row] = []
        self._history_rows = history_rows
        self._pending: Row | None = None
        self._num_pending = 0
        self._rows_per_history_row = 1
        self._whole: Row | None = None

    def add(self, row: Row) -> None:
        """Add a row, which must be later than all before it."""
        self.num_rows += 1
        self._recent.append(row)
        self._whole = self._whole.merged(row) if self._whole else row
        self._pending = self._pending.merged(row) if self._pending else row
        self._num_pending += 1
        if self._num_pending < self._rows_per_history_row:
            return
        self._history.append(self._pending)
        self._pending, self._num_pending = None, 0
        if len(self._history) == self._history_rows:
            pairs = zip(self._history[::2], self._history[1::2], strict=True)
            self._history = [first.merged(second) for first, second in pairs]
            self._rows_per_history_row *= 2

    def after(self, num_rows: int) -> list[Row]:
        """Return the rows after the first `num_rows` of the run, as far back as the ring reaches."""
        wanted = self.num_rows - max(num_rows, 0)
        return list(self._recent)[-wanted:] if wanted > 0 else []

    def history(self) -> list[Row]:
        """Return the whole run, in at most `history_rows` rows."""
        return [*self._history, self._pending] if self._pending else list(self._history)

    def whole(self) -> Mapping[str, Cell]:
        """Return the mean, smallest and largest value of every key over the whole run."""
        return self._whole.cells if self._whole else {}


def columns(rows: Iterable[Row]) -> dict[str, object]:
    """Return rows as columns for JSON.

    The result is {"began_s": [...], "ended_s": [...], "cells": {key: {"mean": [...], "low": [...], "high": [...]}}}.
    A value is None if a key was not measured. A column whose low and high equal its mean everywhere has only the mean.
    """
    rows = list(rows)
    keys = dict.fromkeys(key for row in rows for key in row.cells)
    cells: dict[str, dict[str, list[float | None]]] = {}
    for key in keys:
        found = [row.cells.get(key) for row in rows]
        cells[key] = {"mean": [_short(cell.mean) if cell else None for cell in found]}
        if any(cell and (cell.low != cell.mean or cell.high != cell.mean) for cell in found):
            cells[key]["low"] = [_short(cell.low) if cell else None for cell in found]
            cells[key]["high"] = [_short(cell.high) if cell else None for cell in found]
    return {
        "began_s": [round(row.began_s, 3) for row in rows],
        "ended_s": [round(row.ended_s, 3) for row in rows],
        "cells": cells,
    }


def _short(value: float) -> float:
    """Round to six significant digits. A chart shows three, and the page fetches thousands of numbers."""
    return float(f"{value:.6g}")
