"""Findings as rules make them, and an engine and rules that are small enough to be seen through."""

import ast
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from whet_audit.collect import Problem, SourceFile, does_not_parse
from whet_audit.finding import Confidence, Finding, Fix, Gain, HotPath, Priority, SetKeyword, Span

os.environ.pop("COLUMNS", None)  # the width of whoever's terminal the tests are run in

settings.register_profile("whet-audit", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("whet-audit")

MADE = Finding(
    code="SYN101",
    name="item-in-loop",
    path="train.py",
    span=Span(3, 4, 3, 15),
    message="loss.item() waits for the GPU in every step",
    priority=Priority.HIGH,
    confidence=Confidence.HIGH,
    gain=Gain(0.0, 0.3, "up to the share of the step that waits"),
    hot=HotPath("training loop", "main", "train.py", 2),
)


@pytest.fixture
def make_finding() -> Callable[..., Finding]:
    """A finding with some fields of its own; `at=(line, column, end_line, end_column)` for its span."""

    def make(at: tuple[int, int, int, int] | None = None, **fields: Any) -> Finding:
        if at is not None:
            fields["span"] = Span(*at)
        return replace(MADE, **fields)

    return make


def _rule(code: str, name: str, priority: Priority) -> ModuleType:
    text = f"""{code} {name}: a call in every step.

    Finds       A call of that name, wherever it stands.
    Why slow    The CPU waits
                for the GPU.
    Example     for x in loader:
                    x.f()
    Instead     x.f(ready=True)
    Source      None.
    """
    module: Any = ModuleType(name, text)
    module.CODE, module.NAME, module.PRIORITY = code, name, priority
    return module  # type: ignore[no-any-return]


TOY_RULES = {
    "SYN101": _rule("SYN101", "item-call", Priority.HIGH),
    "MOV101": _rule("MOV101", "to-call", Priority.MEDIUM),
    "MOV102": _rule("MOV102", "cuda-call", Priority.LOW),
}
_METHODS = {"item": "SYN101", "to": "MOV101", "cuda": "MOV102"}


@dataclass
class ToyAudit:
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]


def toy_audit(files: Sequence[SourceFile], codes: Collection[str]) -> ToyAudit:
    """Finds calls of item(), to(...) and cuda() without non_blocking; to is fixed safely, cuda unsafely."""
    found, problems = [], []
    for file in files:
        try:
            tree = ast.parse(file.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(does_not_parse(file, error))
            continue
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            code = _METHODS.get(node.func.attr)
            if code not in codes or node.keywords:
                continue
            assert node.end_lineno is not None and node.end_col_offset is not None
            span = Span(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            edits = (SetKeyword(span, "non_blocking", "True"),)
            fix = None if code == "SYN101" else Fix("copy without waiting", code == "MOV101", edits)
            rule: Any = TOY_RULES[code]
            found.append(
                replace(
                    MADE, code=code, name=rule.NAME, path=file.path, span=span, priority=rule.PRIORITY, fix=fix,
                    message=f"{ast.unparse(node)} waits", hot=HotPath("training loop", "", file.path, 1),
                )
            )  # fmt: skip
    return ToyAudit(tuple(sorted(found, key=lambda f: (f.path, f.span, f.code))), tuple(problems))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy engine and its rules in the place of the real ones."""
    monkeypatch.setattr("whet_audit.run.inspect_files", toy_audit)
    monkeypatch.setattr("whet_audit.run.RULES", TOY_RULES)
    monkeypatch.setattr("whet_audit.audit.RULES", TOY_RULES)
