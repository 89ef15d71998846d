"""One contract for every rule: it fires where its fixtures say, stays silent elsewhere, and its fix removes it.

A fixture file is fixtures/RULE_FILE.py, in sections: `# --- fires: NAME` (lines to be reported end in
`# HIT`), `# --- silent: NAME`, and `# --- fixed: NAME`, what the fires section of that name becomes.
"""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.finding import Finding
from whet_audit.fixing import apply_fixes
from whet_audit.rules import RULES

FIXTURES = Path(__file__).parent / "fixtures"
CARD = ("Finds", "Why slow", "Example", "Instead", "Gain", "Fix", "Source")
_SECTION = re.compile(r"^# --- (fires|silent|fixed): (.+)$", re.MULTILINE)


def _name(rule: ModuleType) -> str:
    return rule.__name__.rpartition(".")[2]


def _sections(rule: ModuleType) -> list[tuple[str, str, str]]:
    """(what it is, its name, its source) of each section of a rule's fixtures."""
    text = (FIXTURES / f"{_name(rule)}.py").read_text(encoding="utf-8")
    marks = list(_SECTION.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [(m[1], m[2].strip(), text[m.end() + 1 : end].rstrip() + "\n") for m, end in zip(marks, ends, strict=True)]


def _cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, source, id=f"{code}-{name}")
        for code, rule in RULES.items()
        for what, name, source in _sections(rule)
        if what == kind
    ]


def _found(rule: ModuleType, source: str) -> list[Finding]:
    result = inspect_files([SourceFile("train.py", source)])
    assert not result.problems
    return [finding for finding in result.findings if finding.code == rule.CODE]


@pytest.mark.parametrize(("rule", "source"), _cases("fires"))
def test_fires(rule: ModuleType, source: str) -> None:
    expected = [number for number, line in enumerate(source.splitlines(), 1) if line.rstrip().endswith("# HIT")]
    assert expected
    assert sorted({finding.span.line for finding in _found(rule, source)}) == expected


@pytest.mark.parametrize(("rule", "source"), _cases("silent"))
def test_stays_silent(rule: ModuleType, source: str) -> None:
    assert [(finding.span.line, finding.message) for finding in _found(rule, source)] == []


@pytest.mark.parametrize(("rule", "source"), _cases("fires"))
def test_a_fix_removes_what_was_found_and_leaves_the_rest(rule: ModuleType, source: str) -> None:
    findings = _found(rule, source)
    fixes = [finding.fix for finding in findings if finding.fix is not None]
    applied = apply_fixes(source, fixes)
    for _ in range(3):  # fixes that overlap wait for the next round
        fixes = [finding.fix for finding in _found(rule, applied.source) if finding.fix is not None]
        if not fixes:
            break
        applied = apply_fixes(applied.source, fixes)
    ast.parse(applied.source)
    kept = [finding for finding in findings if finding.fix is None]
    assert len(_found(rule, applied.source)) <= len(kept)


@pytest.mark.parametrize(
    ("rule", "source", "fixed"),
    [
        pytest.param(rule, source, fixed, id=f"{code}-{name}")
        for code, rule in RULES.items()
        for sections in [_sections(rule)]
        for what, name, source in sections
        for other, same, fixed in sections
        if (what, other) == ("fires", "fixed") and name == same
    ],
)
def test_the_fixed_source_is_as_written(rule: ModuleType, source: str, fixed: str) -> None:
    marked = source.replace("  # HIT", "")
    fixes = [finding.fix for finding in _found(rule, marked) if finding.fix is not None]
    assert apply_fixes(marked, fixes).source == fixed


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_has_a_card_and_enough_fixtures(rule: ModuleType) -> None:
    card = rule.__doc__ or ""
    assert card.startswith(f"{rule.CODE} {rule.NAME}: ")
    assert _name(rule).replace("_", "-") == rule.NAME
    for part in CARD:
        assert re.search(rf"^{part}\b", card, re.MULTILINE), part
    kinds = [what for what, _, _ in _sections(rule)]
    assert kinds.count("fires") >= 2
    assert kinds.count("silent") >= 2
    has_fix = any(f.fix is not None for what, _, s in _sections(rule) if what == "fires" for f in _found(rule, s))
    assert not has_fix or "fixed" in kinds


def test_codes_are_in_order_and_there_are_enough() -> None:
    families = [code[:3] for code in RULES]
    assert list(dict.fromkeys(families)) == ["SYN", "MOV", "DAT", "PRE", "CMP", "MEM", "INF", "DST"]
    assert len(RULES) >= 45
    for family in set(families):
        codes = [code for code in RULES if code.startswith(family)]
        assert codes == sorted(codes)
