"""Read traces of production traffic: the time, the prompt length and the output length of each request.

A trace is a CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens, in any order. It may have others.

Source: Azure's published traces (github.com/Azure/AzurePublicDataset), described by Patel et al., "Splitwise: Efficient
Generative LLM Inference Using Phase Splitting" (ISCA 2024).
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from whet.errors import TraceError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_MAX_DIGITS = 9  # the most digits of a number of tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """Hold a planned request: its seconds after the first one, and the tokens of prompt and answer."""

    at_s: float
    num_input: int
    num_output: int


@dataclass(frozen=True)
class Trace:
    """Hold requests in the order of their times, the first at 0 s. `was_sorted` says whether the file had them so."""

    arrivals: tuple[Arrival, ...]
    was_sorted: bool = True


def read_trace(path: Path) -> Trace:
    """Read a trace. Timestamps are ISO dates and times (to a microsecond), or seconds.

    Raises:
        TraceError: The file is missing, empty or damaged. The error names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_trace(lines, str(path))
    except OSError as error:
        raise TraceError(
            f"cannot read the trace {path}: {error.strerror or error}; give a CSV file with {_named(COLUMNS)}"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text; give a CSV file with {_named(COLUMNS)}") from error


def parse_trace(lines: Iterable[str], name: str) -> Trace:
    """Read a trace from lines of text. Errors refer to it by `name`. See `read_trace`."""
    rows = csv.reader(lines, strict=True)
    columns: list[int] = []
    found: list[tuple[datetime | float, int, int]] = []
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if columns:
                found.append(_request(row, columns, found[0][0] if found else None))
            else:
                columns = _columns(row)
    except UnicodeDecodeError:
        raise
    except (csv.Error, ValueError) as error:
        raise TraceError(f"{name} line {rows.line_num}: {error}; mend or remove that line") from error
    if not columns:
        raise TraceError(f"{name} is empty; a trace is a CSV file with {_named(COLUMNS)}")
    if not found:
        raise TraceError(f"{name} holds no request, only a header: give a file with at least one")
    return _in_order(found)


def _columns(header: list[str]) -> list[int]:
    """Return the index of each of COLUMNS in the header."""
    names = [cell.strip().lower() for cell in header]
    missing = [column for column in COLUMNS if column.lower() not in names]
    if missing:
        raise ValueError(f"no column {_named(missing)}; a trace's first line names {_named(COLUMNS)}")
    return [names.index(column.lower()) for column in COLUMNS]


def _request(row: list[str], columns: list[int], first: datetime | float | None) -> tuple[datetime | float, int, int]:
    if len(row) <= max(columns):
        raise ValueError(f"{len(row)} fields, where the first line names more")
    time, num_input, num_output = (row[column].strip() for column in columns)
    return _time(time, first), _tokens(num_input, COLUMNS[1]), _tokens(num_output, COLUMNS[2])


def _time(text: str, first: datetime | float | None) -> datetime | float:
    """Return a timestamp. It must be of the same kind as that of the first request."""
    time: datetime | float
    try:
        time = float(text)
    except ValueError:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{COLUMNS[0]} is {text!r}, neither a date and time nor seconds") from None
    if isinstance(time, float) and not math.isfinite(time):
        raise ValueError(f"{COLUMNS[0]} is {text!r}, not a finite number of seconds")
    if first is not None and _kind(time) != _kind(first):
        raise ValueError(f"{COLUMNS[0]} is {text!r}, {_kind(time)}; the first request has {_kind(first)}")
    return time


def _kind(time: datetime | float) -> str:
    if isinstance(time, float):
        return "seconds"
    return "a date without a time zone" if time.tzinfo is None else "a date with a time zone"


def _tokens(text: str, column: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise ValueError(f"{column} is {text!r}, not a whole number of at least 1")
    return int(text)


def _in_order(found: list[tuple[datetime | float, int, int]]) -> Trace:
    first = min(time for time, _, _ in found)
    arrivals = [Arrival(_after(first, time), num_input, num_output) for time, num_input, num_output in found]
    in_order = sorted(arrivals, key=lambda arrival: arrival.at_s)
    return Trace(tuple(in_order), was_sorted=in_order == arrivals)


def _after(first: datetime | float, time: datetime | float) -> float:
    if isinstance(first, datetime) and isinstance(time, datetime):
        return (time - first).total_seconds()
    assert isinstance(first, float) and isinstance(time, float)
    return time - first


def _named(columns: Iterable[str]) -> str:
    return ", ".join(columns)
