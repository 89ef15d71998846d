"""Plan how documents lie in rows: which piece of which document is where. The plan is made once and kept.

A document longer than a row is cut into pieces of a row's length and a rest, each with positions from 0. No token is in
two pieces: the last token of a piece that fills its row is asked for the token that follows, which is the first of the
next piece. So every token but the first of a document is predicted exactly once.

A rest of one token, which the piece before it predicts, has nothing to predict and is left out. So is a piece of which
nothing is to be learnt.
"""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whet.errors import OutputError, TargetError
from whet.files import write_whole
from whet.techniques.mechanisms.packing.packing import first_fit_decreasing
from whet.trainer.tokens.store import TokenStore

_VERSION = 1
_WINDOW = 1 << 16  # documents that are packed together: neighbours stay near each other on disk


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Say which tokens lie in each row.

    Attributes:
        row_begins: Where the pieces of each row begin among the pieces, and where the last ones end. [rows + 1]
        begins: Where each piece begins among the tokens. [pieces]
        ends: Where it ends. [pieces]
        goes_on: 1 for each row whose last token is asked for the token that follows it in its document. [rows]
    """

    row_begins: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    goes_on: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.goes_on)

    @property
    def num_tokens(self) -> int:
        return int((self.ends - self.begins).sum())


def row_plan(store: TokenStore, row_length: int) -> RowPlan:
    """Return the plan for the tokens of a store, and keep it beside them where that can be written.

    Raises:
        TargetError: No document has a token to predict.
    """
    path = store.place / f"rows-{_VERSION}-{row_length}-{store.digest[:32]}.npy"
    plan = _kept(path)
    if plan is None:
        plan = _planned(store, row_length)
        _keep(path, plan)
    return plan


def _planned(store: TokenStore, row_length: int) -> RowPlan:
    """Pack the documents of a store, so many at a time."""
    parts: list[tuple[NDArray[np.int64], ...]] = []
    num_rows = 0
    for first in range(0, store.num_documents, _WINDOW):
        begins, ends, goes_on = _pieces(np.asarray(store.starts[first : first + _WINDOW + 1]), row_length)
        kept = _is_learnt(store, begins, ends + goes_on)
        begins, ends, goes_on = begins[kept], ends[kept], goes_on[kept]
        if not len(begins):
            continue
        rows = first_fit_decreasing(ends - begins, row_length)
        order = np.lexsort((begins - ends, rows))  # row by row, the longest first
        parts.append((rows[order] + num_rows, begins[order], ends[order], goes_on[order]))
        num_rows += int(rows.max()) + 1
    if not parts:
        raise TargetError("no document has two tokens of which the second is to be learnt; give longer documents")
    rows, begins, ends, goes_on = (np.concatenate(column) for column in zip(*parts, strict=True))
    row_begins = np.searchsorted(rows, np.arange(num_rows + 1))
    return RowPlan(row_begins, begins, ends, np.maximum.reduceat(goes_on, row_begins[:-1]))


def _pieces(
    starts: NDArray[np.int64], row_length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where the pieces of documents begin and end, and 1 for those that their document goes on behind."""
    lengths = np.diff(starts)
    counts = -(-np.maximum(lengths - 1, 0) // row_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[document] + number * row_length
    ends = np.minimum(begins + row_length, starts[document + 1])
    return begins, ends, (ends < starts[document + 1]).astype(np.int64)


def _is_learnt(store: TokenStore, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether any token of each piece but its first is to be learnt."""
    if store.trained is None or not len(begins):
        return np.ones(len(begins), bool)
    first, last = int(begins[0]), int(ends[-1])
    bounds = np.stack((begins + 1, ends), axis=1).ravel()[:-1] - first  # of what is predicted, and of what lies between
    found: NDArray[np.bool_] = np.maximum.reduceat(store.trained[first:last], bounds)[::2] > 0
    return found


def _kept(path: Path) -> RowPlan | None:
    """Return a plan that was kept; None where there is none, or it was cut off."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        num_rows, num_pieces = (int(number) for number in found[:2])
        if len(found) != 3 + 2 * num_rows + 2 * num_pieces:
            return None
    except (OSError, ValueError, EOFError, IndexError):
        return None
    bounds = np.cumsum([2, num_rows + 1, num_pieces, num_pieces])
    return RowPlan(*np.split(found, bounds)[1:])


def _keep(path: Path, plan: RowPlan) -> None:
    """Keep a plan. Where the place cannot be written, the next process makes it again: that costs time alone."""
    content = io.BytesIO()
    sizes = np.array([len(plan), len(plan.begins)], np.int64)
    np.save(content, np.concatenate((sizes, plan.row_begins, plan.begins, plan.ends, plan.goes_on)))
    with contextlib.suppress(OutputError):
        write_whole(path, content.getvalue())
