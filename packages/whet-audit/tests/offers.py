"""What fixes the auditor offers for a small program."""

from __future__ import annotations

import textwrap
from pathlib import Path

from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.finding import Finding
from whet_audit.fixing import apply_fixes

SAFE, UNSAFE, NONE = "safe", "unsafe", "none"


def found(folder: Path, source: str, code: str, requirement: str = "") -> list[Finding]:
    """The findings of a code in `train.py`, in a project with a requirement of torch."""
    folder.mkdir(exist_ok=True)
    (folder / ".git").mkdir(exist_ok=True)
    if requirement:
        (folder / "requirements.txt").write_text(f"numpy\n{requirement}\n", encoding="utf-8")
    result = inspect_files([SourceFile(str(folder / "train.py"), textwrap.dedent(source))])
    assert not result.problems
    return [finding for finding in result.findings if finding.code == code]


def offered(findings: list[Finding]) -> list[str]:
    """What fix each finding comes with."""
    return [NONE if f.fix is None else SAFE if f.fix.is_safe else UNSAFE for f in findings]


def fixed(folder: Path, source: str, code: str) -> str:
    """The source after the fixes of a code."""
    text = textwrap.dedent(source)
    return apply_fixes(text, [f.fix for f in found(folder, source, code) if f.fix is not None]).source
