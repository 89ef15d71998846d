"""Jupyter notebooks: the code of all cells as one text, with magics commented out and every line in its place."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PYTHON_CELLS = ("time", "timeit", "capture", "prun", "python", "python3")  # cell magics that run the cell as Python
_MAGIC = re.compile(r"\s*(?:[%!?]|\w[\w.]*\?{1,2}\s*$)")
_ASSIGNED = re.compile(r"(\s*[\w.\[\]'\", ]+=\s*)[%!]\s*\w")
# strings that end, then those that do not, then comments, then brackets
_TOKEN = re.compile(
    r"'''|\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|#.*|[([{]|[)\]}]",
)


class DamagedNotebook(Exception):
    """The file is no notebook. line: of the JSON, or 0."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Notebook:
    """text: the code of the cells, one after the other. cell_starts: each cell's first line in it, those of text too.

    problem: what is wrong with cells that do not parse, in one line; they are commented out.
    """

    text: str
    cell_starts: tuple[int, ...]
    language: str
    problem: str = ""


def read_notebook(data: bytes) -> Notebook:
    """Read a notebook of nbformat 3 or 4. Raises DamagedNotebook where it is none."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DamagedNotebook(error.lineno, f"is no notebook: {error.msg}") from error
    except (UnicodeError, RecursionError) as error:
        raise DamagedNotebook(0, "is no notebook: not JSON in UTF-8") from error
    cells = list(_cells(content))
    lines: list[str] = []
    starts, bad = [], []
    for number, source in enumerate(cells, start=1):
        starts.append(len(lines) + 1)
        if source is None:
            continue
        made, why = _as_python(source)
        lines += made
        if why:
            bad.append(f"cell {number}, {why}")
    problem = bad[0] + (f" (and {len(bad) - 1} more cells)" if len(bad) > 1 else "") if bad else ""
    return Notebook("\n".join([*lines, ""]), tuple(starts), _language(content), problem)


def _cells(content: Any) -> Iterator[str | None]:
    """The source of each cell; None for those that are no code."""
    if not isinstance(content, dict):
        raise DamagedNotebook(0, "is no notebook: a JSON object was expected")
    cells = content.get("cells")
    if cells is None and isinstance(content.get("worksheets"), list):  # nbformat 3
        sheets = [sheet.get("cells") for sheet in content["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets if isinstance(sheet, list) for cell in sheet]
    if not isinstance(cells, list):
        raise DamagedNotebook(0, "is no notebook: it has no cells")
    for cell in cells:
        if not isinstance(cell, dict):
            raise DamagedNotebook(0, "is no notebook: a cell is no object")
        if cell.get("cell_type") != "code":
            yield None
            continue
        source = cell.get("source", cell.get("input", ""))
        if isinstance(source, list) and all(isinstance(part, str) for part in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise DamagedNotebook(0, "is no notebook: a cell's source is no text")
        yield source.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for table, key in (("language_info", "name"), ("kernelspec", "language")):
        named = metadata.get(table)
        if isinstance(named, dict) and isinstance(named.get(key), str) and named[key]:
            return "python" if named[key].lower() in ("python", "python3", "ipython") else named[key].split("\n")[0]
    return "python"


def _as_python(source: str) -> tuple[list[str], str]:
    """The lines of a cell, those that are not Python commented out; and why it does not parse, where it does not."""
    lines = source.removesuffix("\n").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%"):
        name = first[2:].split()[0] if first[2:].split() else ""
        if name not in _PYTHON_CELLS:
            return [_comment(line) for line in lines], ""
        at = next(index for index, line in enumerate(lines) if line.strip())
        lines[at] = _comment(lines[at])
    if _error(lines) is None:  # magics never parse: here, a line that starts with % goes on from the last
        return lines, ""
    lines = _without_magics(lines)
    error = _error(lines)
    if error is None:
        return lines, ""
    return [_comment(line) for line in lines], error


def _error(lines: list[str]) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return f"line {error.lineno or 1}: does not parse: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return "line 1: does not parse"
    return None


def _without_magics(lines: list[str]) -> list[str]:
    """Lines where a statement starts and that are magics, shell commands or questions become `pass`."""
    made = []
    depth, quote, goes_on = 0, "", ""
    for line in lines:
        if goes_on == "magic":
            made.append(_comment(line))
        elif depth == 0 and not quote and not goes_on and _MAGIC.match(line):
            made.append(f"{line[: len(line) - len(line.lstrip())]}pass  {_comment(line.lstrip())}")
        elif depth == 0 and not quote and not goes_on and (assigned := _ASSIGNED.match(line)):
            made.append(f"{assigned[1]}None  {_comment(line[assigned.end(1) :])}")
        else:
            made.append(line)
            depth, quote = _state_after(line, depth, quote)
            goes_on = "code" if line.endswith("\\") else ""
            continue
        goes_on = "magic" if line.endswith("\\") else ""
    return made


def _state_after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Open brackets and the open triple quote at the end of a line."""
    at = 0
    while at < len(line):
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return depth, quote
            at, quote = end + 3, ""
            continue
        token = _TOKEN.search(line, at)
        if token is None:
            break
        text, at = token.group(), token.end()
        if text in ("'''", '"""'):
            quote = text
        elif text in "([{":
            depth += 1
        elif text in ")]}":
            depth = max(0, depth - 1)
    return depth, quote


def _comment(line: str) -> str:
    return f"# {line}".rstrip()
