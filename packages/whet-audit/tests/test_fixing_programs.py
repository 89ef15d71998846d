"""Fixes in programs put together at random, and in the standard library: the same change made to the tree otherwise."""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spans import comments, fix, span
from whet_audit.finding import (
    Edit,
    InsertAfter,
    InsertBefore,
    ReplaceExpression,
    ReplaceStatement,
    SetKeyword,
    WrapStatements,
)
from whet_audit.fixing import apply_fixes

# Programs put together at random, and the same change made to the tree by other means.

SIMPLE = [
    "f(a)", "x = f(a, k=2)", "é = 'ü', f('ö', *a)", "y = f(g(a), **kw)", "z = [f(x) for x in f()]", "f(x for x in a)",
    "w = f(\n{i}    a,  # one\n{i}    b=1,  # two\n{i})", "v = a + \\\n  f(b)", "u = (f(a)  # three\n{i}  + 1)",
    "s = '''t\n u'''", "f(a, f(b), k=f(c, k=3))  # four", "pass", "x: int = f(a)", "assert f(a), f'{f(a)}'",
    "f(a); x = 1; g(f(b))  # five", "lambda: f(a)", "x, y = 1, (2, f(a))", "x = f(k = 1 ,)", "f( a )",
]  # fmt: skip
HEADS = [
    "if f(a):", "for i in f(a):  # six", "while x :", "with f(a) as b, c:", "def f(a, b=f(1)):", "class A(f(a)):",
    "@f(a)\n{i}# seven\n{i}def g():", "async def h():", "try:", "match f(a):",
]  # fmt: skip
SPACES = ["", "\n", "{i}# above\n", "\n{i}# above\n", "{i}# far\n\n\n", "# at the margin\n"]


@st.composite
def programs(draw: st.DrawFn) -> str:
    unit = draw(st.sampled_from(["    ", "  ", "\t"]))
    text = "".join(_lines(draw, "", unit, 0))
    text = draw(st.sampled_from(["", "# top\n", '"""Doc."""\n'])) + text
    text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    return text if draw(st.booleans()) else text.rstrip()


def _lines(draw: st.DrawFn, indent: str, unit: str, depth: int) -> list[str]:
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        lines.append(draw(st.sampled_from(SPACES)).replace("{i}", indent))
        kind = draw(st.integers(0, 3 if depth < 3 else 0))
        if kind < 2:
            lines.append(indent + draw(st.sampled_from(SIMPLE)).replace("{i}", indent) + "\n")
            continue
        head = draw(st.sampled_from(HEADS)).replace("{i}", indent)
        if kind == 2 and "#" not in head.split("\n")[-1] and not head.startswith("match"):
            small = draw(st.sampled_from([each for each in SIMPLE if "\n" not in each]))
            lines.append(f"{indent}{head} {small}\n")
        elif head.startswith("match"):
            inner = indent + unit
            lines += [f"{indent}{head}\n", f"{inner}case [1, *_]: f(a)\n", f"{inner}case _:\n"]
            lines += _lines(draw, inner + unit, unit, depth + 2)
        else:
            lines += [f"{indent}{head}\n", *_lines(draw, indent + unit, unit, depth + 1)]
        if head == "try:":
            lines.append(f"{indent}finally: f(a)\n")
    return lines


def calls_of(tree: ast.AST) -> list[ast.Call]:
    """Calls outside f-strings, whose positions Python 3.11 does not always know."""
    inside = {id(node) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for node in ast.walk(each)}
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in inside]


def set_in_tree(node: ast.Call, name: str, value: str) -> None:
    new = ast.keyword(name, ast.parse(value, mode="eval").body)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg == name:
            node.keywords[i] = new
            return
    cut = len(node.keywords)
    while cut and node.keywords[cut - 1].arg is None:
        cut -= 1
    node.keywords.insert(cut, new)


@given(source=programs(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_keywords_in_any_program(source: str, data: st.DataObject) -> None:
    tree = ast.parse(source)
    calls = calls_of(tree)
    chosen = data.draw(st.lists(st.sampled_from(calls), unique_by=id)) if calls else []
    # what a keyword's new value takes away cannot be changed as well
    gone = {id(node) for each in chosen for key in each.keywords if key.arg == "k" for node in ast.walk(key.value)}
    chosen = [each for each in chosen if id(each) not in gone]
    fixes = [fix(SetKeyword(span(source, each), "k", "a or 1")) for each in chosen]
    result = apply_fixes(source, fixes)
    assert not result.skipped
    for each in chosen:
        set_in_tree(each, "k", "a or 1")
    assert ast.dump(ast.parse(result.source)) == ast.dump(tree)
    assert comments(result.source) == comments(source)
    if not chosen:
        assert result.source == source


STATEMENT_EDITS = ["before", "after", "replace", "split", "remove", "wrap"]


@given(source=programs(), kind=st.sampled_from(STATEMENT_EDITS), data=st.data())
@settings(max_examples=120, deadline=None)
def test_statements_in_any_program(source: str, kind: str, data: st.DataObject) -> None:
    tree = ast.parse(source)
    blocks = [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list) and block
    ]
    block = data.draw(st.sampled_from(blocks))
    start = data.draw(st.integers(0, len(block) - 1))
    end = data.draw(st.integers(start, len(block) - 1)) if kind == "wrap" else start
    edit, new = _statement_edit(kind, source, block[start : end + 1])
    result = apply_fixes(source, [fix(edit)])
    assert not result.skipped
    block[start : end + 1] = new
    if not block and block is not tree.body:
        block.append(ast.Pass())
    assert ast.dump(ast.parse(result.source)) == ast.dump(tree)
    assert comments(result.source) == comments(source)
    assert ("\r\n" in result.source) == ("\r\n" in source) or source.count("\n") < 2
    assert "\n" not in result.source.replace("\r\n", "") or "\r\n" not in source


def _statement_edit(kind: str, source: str, chosen: list[ast.stmt]) -> tuple[Edit, list[ast.stmt]]:
    """An edit, and the statements that should then stand in place of the chosen ones."""
    where = span(source, chosen[0])
    two = "if n:\n    m\nelse:\n    o"
    if kind == "wrap":
        header = ast.parse("with w: pass").body[0]
        assert isinstance(header, ast.With)
        header.body = chosen
        return WrapStatements(where, span(source, chosen[-1]), "with w:"), [header]
    if kind == "before":
        return InsertBefore(where, two), [*ast.parse(two).body, *chosen]
    if kind == "after":
        return InsertAfter(where, two), [*chosen, *ast.parse(two).body]
    if kind == "split":
        return ReplaceStatement(where, f"n\n{two}"), ast.parse(f"n\n{two}").body
    if kind == "replace":
        return ReplaceStatement(where, "n = 1"), ast.parse("n = 1").body
    return ReplaceStatement(where, ""), []


@given(source=programs(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_expressions_in_any_program(source: str, data: st.DataObject) -> None:
    tree = ast.parse(source)
    calls = calls_of(tree)
    if not calls:
        return
    chosen = data.draw(st.sampled_from(calls))
    text = data.draw(st.sampled_from(["n", "n + 1", "n if m else o", "lambda: n", "(n, m)", "not n", "n.m(o)", "-1"]))
    where = span(source, chosen)
    result = apply_fixes(source, [fix(ReplaceExpression(where, text))])
    assert not result.skipped
    new = ast.parse(text, mode="eval").body

    class Swap(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            return new if node is chosen else self.generic_visit(node)

    assert ast.dump(ast.parse(result.source)) == ast.dump(Swap().visit(tree))
    assert comments(result.source) == comments(source)


def _library() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if not {"site-packages", "test", "lib2to3"} & set(path.parts))
    return random.Random(0).sample(paths, 200)


def check_library_file(path: Path) -> str:
    """Set a keyword on each tenth call; the result: "" or why nothing was done."""
    source = path.read_bytes().decode("utf-8-sig")
    tree = ast.parse(source)
    chosen = calls_of(tree)[::10]
    fixes = [fix(SetKeyword(span(source, each), "whet", "1")) for each in chosen]
    result = apply_fixes(source, fixes)
    if result.skipped:
        return f"{path.name}: {result.skipped[0][1]}"
    for each in chosen:
        set_in_tree(each, "whet", "1")
    assert ast.dump(ast.parse(result.source)) == ast.dump(tree), path
    assert comments(result.source) == comments(source), path
    return ""


@pytest.mark.slow
def test_keywords_in_the_standard_library() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old files
        skipped = [why for path in _library() if (why := check_library_file(path))]
    assert all("form feeds" in why for why in skipped), skipped
    assert len(skipped) <= 4, skipped


def test_keywords_in_some_files_of_the_standard_library() -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "dataclasses.py", "json/encoder.py"):
        assert check_library_file(root / name) == ""
