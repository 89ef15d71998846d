"""A baseline: findings that are known and accepted, so that only new ones fail.

A finding is known by its file, its code and its line of source, without regard to spaces and to where the line stands.
Of equal ones so many are known as were written; one more is new.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet_audit.collect import SourceFile
from whet_audit.errors import AuditError, reason
from whet_audit.finding import Finding

FORMAT = 1
Key = tuple[str, str, str]
"""File, relative to the baseline's directory; code; line of source."""


@dataclass(frozen=True)
class Matched:
    """Findings that are new, and how many are known, or were known and are gone."""

    new: tuple[Finding, ...]
    num_known: int
    num_gone: int


@dataclass(frozen=True)
class Baseline:
    """What was known. directory: that paths are relative to."""

    directory: Path
    counts: Mapping[Key, int]

    def match(
        self,
        findings: Iterable[Finding],
        files: Iterable[SourceFile],
        is_on: Callable[[str, str], bool] = lambda code, path: True,
    ) -> Matched:
        """Tell new findings from known ones. Only audited files and codes that are on count as gone."""
        sources = {file.path: file for file in files}
        left = Counter(self.counts)
        new, num_known = [], 0
        for finding in findings:
            key = _key(finding, sources, self.directory)
            if left[key] > 0:
                left[key] -= 1
                num_known += 1
            else:
                new.append(finding)
        audited = {_relative(path, self.directory): path for path in sources}
        num_gone = 0
        for (path, code, _), count in left.items():
            is_seen = path in audited or not (self.directory / path).exists()
            if count > 0 and is_seen and is_on(code, audited.get(path, str(self.directory / path))):
                num_gone += count
        return Matched(tuple(new), num_known, num_gone)


def read_baseline(path: Path) -> Baseline:
    """Read what `baseline_text` made. Raises AuditError for a missing, damaged or newer file."""
    again = f"write it anew with --write-baseline {path}"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise AuditError(f"there is no baseline {path}; {again.replace('anew ', '')}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise AuditError(f"the baseline {path} cannot be read: {reason(error)}; {again}") from error
    if not isinstance(content, dict) or "format" not in content or "findings" not in content:
        raise AuditError(f"{path} is no baseline of whet audit; {again}")
    if content["format"] != FORMAT:
        raise AuditError(f"the baseline {path} has format {content['format']!r}, this version reads {FORMAT}; {again}")
    counts: Counter[Key] = Counter()
    entries: Any = content["findings"]
    if not isinstance(entries, list):
        raise AuditError(f"the baseline {path} is damaged: its findings are no list; {again}")
    for entry in entries:
        if not _is_entry(entry):
            raise AuditError(f"the baseline {path} is damaged: an entry is not path, code, line and count; {again}")
        counts[(entry["path"], entry["code"], entry["line"])] += entry["count"]
    return Baseline(path.absolute().parent, counts)


def baseline_text(findings: Iterable[Finding], files: Iterable[SourceFile], directory: Path) -> str:
    """The file that makes these findings known; directory: where it will lie. One line a finding, for diffs."""
    sources = {file.path: file for file in files}
    counts = Counter(_key(finding, sources, directory.absolute()) for finding in findings)
    entries = [
        json.dumps({"path": path, "code": code, "line": line, "count": count})
        for (path, code, line), count in sorted(counts.items())
    ]
    listed = ",\n".join(f"    {entry}" for entry in entries)
    body = f"[\n{listed}\n  ]" if entries else "[]"
    return f'{{\n  "format": {FORMAT},\n  "findings": {body}\n}}\n'


def _key(finding: Finding, sources: Mapping[str, SourceFile], directory: Path) -> Key:
    source = sources.get(finding.path)
    line = "" if source is None else " ".join(source.line(finding.span.line).split())
    return _relative(finding.path, directory), finding.code, line


def _relative(path: str, directory: Path) -> str:
    return os.path.relpath(path, directory).replace(os.sep, "/")


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    is_named = all(isinstance(entry.get(key), str) for key in ("path", "code", "line"))
    number = entry.get("count")
    return is_named and type(number) is int and number > 0
