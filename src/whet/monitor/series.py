"""Measured rows over time in bounded memory: the latest in full, the whole run in ever wider ones.

The latest rows lie in a ring. Beside it every row also goes into the history; when that is full, neighbours are merged
two by two and from then on each of its rows stands for twice the time. A day takes as much memory as ten minutes.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

RECENT_ROWS = 900
HISTORY_ROWS = 512


class Cell(NamedTuple):
    """One measured value of a stretch of time. weight: what it counts for when merged (seconds, steps); above 0."""

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
    """What was measured between two moments, in seconds since the run began. A key that is absent was not measured."""

    began_s: float
    ended_s: float
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def merged(self, later: "Row") -> "Row":
        cells = dict(self.cells)
        for key, cell in later.cells.items():
            cells[key] = cells[key].merged(cell) if key in cells else cell
        return Row(self.began_s, later.ended_s, cells)


class Series:
    """The rows of a run. Not thread-safe: whoever shares one holds a lock."""

    def __init__(self, recent_rows: int = RECENT_ROWS, history_rows: int = HISTORY_ROWS) -> None:
        if recent_rows < 1 or history_rows < 2 or history_rows % 2:
            raise ValueError("a ring of at least 1 row and an even history of at least 2 are wanted")
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
        """The rows from the `num_rows`-th of the run on, as far back as the ring goes."""
        wanted = self.num_rows - max(num_rows, 0)
        return list(self._recent)[-wanted:] if wanted > 0 else []

    def history(self) -> list[Row]:
        """The whole run, in at most `history_rows` rows."""
        return [*self._history, self._pending] if self._pending else list(self._history)

    def whole(self) -> Mapping[str, Cell]:
        """Every key's mean, smallest and largest over the whole run."""
        return self._whole.cells if self._whole else {}


def columns(rows: Iterable[Row]) -> dict[str, object]:
    """Rows as JSON columns: {"began_s": [...], "ended_s": [...], "cells": {key: {"mean": [...], "low", "high"}}}.

    None stands where a key was not measured. A column whose low and high are its mean everywhere has only the mean.
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
    """Six significant digits: a chart shows three, and the page fetches thousands of them."""
    return float(f"{value:.6g}")
