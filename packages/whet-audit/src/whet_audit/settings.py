"""What pyproject.toml says about an audit, under [tool.whet.audit], and which codes are on.

    [tool.whet.audit]
    select = ["SYN", "MOV101"]              # codes or their beginnings; default: all
    ignore = ["CMP"]
    preview = true                          # also the rules in preview
    min-priority = "medium"
    min-confidence = "perhaps"
    fail-on = "high"
    exclude = ["third_party", "old/**/*.py"]
    per-file-ignores = { "tests/*" = ["SYN"] }
    baseline = "audit-baseline.json"

Paths are relative to the file's directory. The table is checked by hand: pydantic would double the start-up time.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from whet_audit.errors import AuditError, reason
from whet_audit.finding import SURENESS, Confidence, Finding, Priority, reaches
from whet_audit.globs import matches

FILE = "pyproject.toml"
ALL = "ALL"
Level = TypeVar("Level", Priority, Confidence)
PRIORITIES = {str(priority): priority for priority in reversed(Priority)}
CONFIDENCES = {word: confidence for confidence, word in reversed(SURENESS.items())}
_KEYS = (
    *("select", "ignore", "exclude", "per-file-ignores", "baseline"),
    *("preview", "min-priority", "min-confidence", "fail-on"),
)


@dataclass(frozen=True)
class Settings:
    """What applies to an audit. root: the directory that patterns and the baseline are relative to.

    select: None where nothing was chosen. given_select, given_ignore, given_exclude: from the command line, which wins;
    its patterns are relative to the working directory. previews: the codes that are off without `preview`, unless they
    are selected in full.
    """

    root: Path = field(default_factory=Path)
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: Path | None = None
    given_select: tuple[str, ...] | None = None
    given_ignore: tuple[str, ...] = ()
    given_exclude: tuple[str, ...] = ()
    preview: bool = False
    previews: frozenset[str] = frozenset()
    min_priority: Priority = Priority.LOW
    min_confidence: Confidence = Confidence.MEDIUM
    fail_on: Priority = Priority.LOW

    def is_on(self, code: str, path: Path | str = "") -> bool:
        """Whether findings of a code are shown, in a file where one is given.

        The selector that names the code most exactly decides; of equals, the command line's, then the one that ignores.
        A selection on the command line takes the place of the file's.
        """
        select = self.given_select if self.given_select is not None else self.select
        from_command = self.given_select is not None
        if code in self.previews and not self.preview and code not in (select or ()):
            return False
        ranked = [(_rank(s, code), from_command, False) for s in ((ALL,) if select is None else select)]
        ranked += [(_rank(s, code), False, True) for s in self.ignore]
        ranked += [(_rank(s, code), True, True) for s in self.given_ignore]
        best = max((rank for rank in ranked if rank[0] >= 0), default=None)
        if best is None or best[2]:
            return False
        if not path or not self.per_file_ignores:
            return True
        relative = self._relative(path)
        return not any(
            any(_rank(selector, code) >= 0 for selector in codes)
            for pattern, codes in self.per_file_ignores.items()
            if matches(relative, pattern)
        )

    def shows(self, finding: Finding) -> bool:
        """Whether a finding is as sure, and of as high a priority, as was asked for."""
        return reaches(finding.confidence, self.min_confidence) and reaches(finding.priority, self.min_priority)

    def is_excluded(self, path: Path) -> bool:
        """Whether a file or a directory is left out."""
        return any(
            matches(self._relative(path, root), pattern)
            for root, patterns in ((self.root, self.exclude), (Path.cwd(), self.given_exclude))
            for pattern in patterns
        )

    def _relative(self, path: Path | str, root: Path | None = None) -> str:
        for absolute in (os.path.abspath(path), os.path.realpath(path)):  # noqa: PTH100 - links stay at first
            relative = os.path.relpath(absolute, root or self.root).replace(os.sep, "/")
            if not relative.startswith("../"):
                return relative
        return str(path).replace(os.sep, "/").lstrip("/")


def read_settings(paths: Sequence[Path], codes: Collection[str]) -> Settings:
    """The settings nearest to what is audited: of the directory that holds all of it, or the first above with a table.

    Raises AuditError for a damaged file, unknown keys and codes, and values of the wrong type.
    """
    start = _common(paths)
    for directory in (start, *start.parents):
        table = _table(directory / FILE)
        if table is not None:
            return _checked(table, directory / FILE, codes)
    return Settings(root=start)


def check_codes(given: Iterable[str], codes: Collection[str], where: str) -> tuple[str, ...]:
    """Codes in capitals. Raises AuditError, with what may have been meant, for one that no code begins with."""
    checked = []
    for name in given:
        selector = name.strip().upper()
        if selector != ALL and not (selector and any(code.startswith(selector) for code in codes)):
            raise AuditError(f"{where}: there is no code {name.strip()!r}{near(selector, codes)}")
        checked.append(selector)
    return tuple(checked)


def check_patterns(patterns: Iterable[str], where: str) -> tuple[str, ...]:
    """The patterns of paths. Raises AuditError for one that is none."""
    checked = tuple(patterns)
    for pattern in checked:
        try:
            matches("", pattern)
        except ValueError as error:
            raise AuditError(f"{where}: {pattern!r} is no pattern as in .gitignore: {reason(error)}") from error
    return checked


def check_level(given: object, levels: Mapping[str, Level], where: str) -> Level:
    """The level of a name. Raises AuditError, with those there are, for any other."""
    if not isinstance(given, str) or given not in levels:
        raise AuditError(f"{where} takes one of {', '.join(map(repr, levels))}; got {given!r}")
    return levels[given]


def near(code: str, codes: Collection[str]) -> str:
    """What may have been meant, as the end of a sentence."""
    families = sorted({known.rstrip("0123456789") for known in codes})
    close = difflib.get_close_matches(code, [*codes, *families], n=3)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; the families are {', '.join(families)}" if families else ""


def _rank(selector: str, code: str) -> int:
    """How exactly a selector names a code; -1 where it does not."""
    if selector == ALL:
        return 0
    return len(selector) if code.startswith(selector) else -1


def _common(paths: Sequence[Path]) -> Path:
    """The directory that holds all paths."""
    absolute = [path.resolve() for path in paths] or [Path.cwd()]
    common = Path(os.path.commonpath(absolute))
    return common if common.is_dir() else common.parent


def _table(path: Path) -> dict[str, object] | None:
    """The audit's table; None where the file has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        raise AuditError(f"{path} cannot be read: {reason(error)}") from error
    if "whet" not in text:
        return None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AuditError(f"{path} is damaged: {error}") from error
    table: object = content
    for key in ("tool", "whet", "audit"):
        if not isinstance(table, dict) or key not in table:
            return None
        table = table[key]
    if not isinstance(table, dict):
        raise AuditError(f"{path}: tool.whet.audit must be a table")
    return table


def _checked(table: Mapping[str, object], path: Path, codes: Collection[str]) -> Settings:
    where = f"{path}: tool.whet.audit"
    for key in table:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_KEYS)}"
            raise AuditError(f"{where} has an unknown key {key!r}; {hint}")
    ignores = table.get("per-file-ignores", {})
    if not isinstance(ignores, dict):
        raise AuditError(f'{where}.per-file-ignores must be a table of lists, as {{ "tests/*" = ["SYN"] }}')
    baseline = table.get("baseline")
    if baseline is not None and (not isinstance(baseline, str) or not baseline):
        raise AuditError(f'{where}.baseline must be the name of a file, as "audit-baseline.json"')
    exclude = _strings(table.get("exclude", []), f"{where}.exclude")
    check_patterns((*exclude, *ignores), where)
    preview = table.get("preview", False)
    if not isinstance(preview, bool):
        raise AuditError(f"{where}.preview must be true or false")
    return Settings(
        root=path.parent,
        select=_codes(table, "select", where, codes) if "select" in table else None,
        ignore=_codes(table, "ignore", where, codes),
        exclude=exclude,
        per_file_ignores={
            pattern: check_codes(_strings(given, f"{where}.per-file-ignores"), codes, f"{where}.per-file-ignores")
            for pattern, given in ignores.items()
        },
        baseline=path.parent / baseline if isinstance(baseline, str) else None,
        preview=preview,
        min_priority=check_level(table.get("min-priority", "low"), PRIORITIES, f"{where}.min-priority"),
        min_confidence=check_level(table.get("min-confidence", "likely"), CONFIDENCES, f"{where}.min-confidence"),
        fail_on=check_level(table.get("fail-on", "low"), PRIORITIES, f"{where}.fail-on"),
    )


def _codes(table: Mapping[str, object], key: str, where: str, codes: Collection[str]) -> tuple[str, ...]:
    return check_codes(_strings(table.get(key, []), f"{where}.{key}"), codes, f"{where}.{key}")


def _strings(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise AuditError(f'{where} must be a list of strings, as ["SYN", "MOV101"]')
    return tuple(value)
