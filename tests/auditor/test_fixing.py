"""Fixes: each edit in awkward surroundings, programs put together at random, and the standard library."""

from __future__ import annotations

import ast
import io
import random
import subprocess
import sys
import sysconfig
import tokenize
import warnings
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.auditor.finding import (
    AddDecorator,
    AddImport,
    Edit,
    Fix,
    InsertAfter,
    InsertBefore,
    RemoveKeyword,
    ReplaceExpression,
    ReplaceStatement,
    SetKeyword,
    Span,
    WrapStatements,
)
from whet.auditor.fixing import OVERLAPS, Applied, apply_fixes, unified_diff


def span(source: str, node: ast.AST) -> Span:
    """The span of a node, its columns counted in characters."""
    lines = source.encode().splitlines()
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span(
        node.lineno,
        len(lines[node.lineno - 1][: node.col_offset].decode()),
        node.end_lineno,
        len(lines[node.end_lineno - 1][: node.end_col_offset].decode()),
    )


def at(source: str, text: str, kind: type[ast.AST] = ast.AST) -> Span:
    """The span of the first node of `kind` whose source is or, for statements, starts with `text`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kind) and isinstance(node, ast.expr | ast.stmt):
            segment = ast.get_source_segment(source, node) or ""
            if segment == text or (isinstance(node, ast.stmt) and segment.startswith(text)):
                return span(source, node)
    raise AssertionError(f"no {text!r} in the source")


def call(source: str, text: str) -> Span:
    return at(source, text, ast.Call)


def stmt(source: str, text: str) -> Span:
    return at(source, text, ast.stmt)


def fix(*edits: Edit) -> Fix:
    return Fix("do it", True, edits)


def applied(source: str, *edits: Edit) -> str:
    result = apply_fixes(source, [fix(*edits)])
    assert not result.skipped, result.skipped
    return result.source


def comments(source: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


SET = [
    ("f()", "f()", "f(k=1)"),
    ("f( )", "f( )", "f(k=1)"),
    ("f(a)", "f(a)", "f(a, k=1)"),
    ("f(a,)", "f(a,)", "f(a, k=1,)"),
    ("f(a, k=2)", "f(a, k=2)", "f(a, k=1)"),
    ("f(a, k = 2)", "f(a, k = 2)", "f(a, k = 1)"),
    ("f(a, b = 2)", "f(a, b = 2)", "f(a, b = 2, k = 1)"),
    ("f(**kw)", "f(**kw)", "f(k=1, **kw)"),
    ("f(a, **kw)", "f(a, **kw)", "f(a, k=1, **kw)"),
    ("f(a, *b)", "f(a, *b)", "f(a, *b, k=1)"),
    ("f(x for x in y)", "f(x for x in y)", "f((x for x in y), k=1)"),
    ("f((x for x in y))", "f((x for x in y))", "f((x for x in y), k=1)"),
    ("f(\n    a,\n    b=2,\n)", None, "f(\n    a,\n    b=2,\n    k=1,\n)"),
    ("f(\n    a,\n    b=2\n)", None, "f(\n    a,\n    b=2,\n    k=1\n)"),
    ("f(\n    a, b\n)", None, "f(\n    a, b, k=1\n)"),
    ("f(a,\n  b)", None, "f(a,\n  b,\n  k=1)"),
    ("f(\n\ta,  # one\n\tb,  # two\n\t# three\n)", None, "f(\n\ta,  # one\n\tb,  # two\n\t# three\n\tk=1,\n)"),
    ("f(\n    a  # one\n)", None, "f(\n    a,  # one\n    k=1\n)"),
    ("f(a  # one\n)", None, "f(a, k=1  # one\n)"),
    ("f(  # one\n)", None, "f(  # one\n    k=1\n)"),
    ("f(\n    a,  # one\n    # two\n    **kw,\n)", None, "f(\n    a,  # one\n    k=1,\n    # two\n    **kw,\n)"),
    ("f(\n    **kw,\n)", None, "f(\n    k=1,\n    **kw,\n)"),
    ("f(a, k=(2))", "f(a, k=(2))", "f(a, k=(1))"),
    ("'ä'; é = f('ü')", "f('ü')", "'ä'; é = f('ü', k=1)"),
    ("x = (f(a))", "f(a)", "x = (f(a, k=1))"),
    ("(f)(a)", "(f)(a)", "(f)(a, k=1)"),
    ("@f(a)\ndef g(): pass", "f(a)", "@f(a, k=1)\ndef g(): pass"),
    ("x = f(a) \\\n  + 1", "f(a)", "x = f(a, k=1) \\\n  + 1"),
    ("f'{f(a)}'", "f(a)", "f'{f(a, k=1)}'"),
]


@pytest.mark.parametrize(("source", "text", "expected"), SET)
def test_set_keyword(source: str, text: str | None, expected: str) -> None:
    edit = SetKeyword(call(source, text or source), "k", "1")
    assert applied(source, edit) == expected
    again = SetKeyword(span(expected, _call_with(expected, "k")), "k", "1")
    assert applied(expected, again) == expected


def _call_with(source: str, keyword: str) -> ast.Call:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return next(node for node in calls if any(each.arg == keyword for each in node.keywords))


REMOVE = [
    ("f(k=1)", "f()"),
    ("f(a, k=1)", "f(a)"),
    ("f(k=1, b=2)", "f(b=2)"),
    ("f(a, k=1, **kw)", "f(a, **kw)"),
    ("f(a, k=1,)", "f(a,)"),
    ("f(\n    a,\n    k=1,\n)", "f(\n    a,\n)"),
    ("f(\n    a,\n    k=1\n)", "f(\n    a\n)"),
    ("f(\n    k=1,\n    b=2,\n)", "f(\n    b=2,\n)"),
    ("f(\n    a,  # one\n    k=1,  # two\n    b=2,  # three\n)", "f(\n    a,  # one\n    # two\n    b=2,  # three\n)"),
    ("f(\n    a,  # one\n    k=1,  # two\n)", "f(\n    a,  # one\n    # two\n)"),
    ("f(\n    a,\n    # one\n    k=1,\n)", "f(\n    a,\n    # one\n)"),
    ("f(a,\n  k=1)", "f(a)"),
    ("f(\n    k=1,\n)", "f(\n)"),
]


@pytest.mark.parametrize(("source", "expected"), REMOVE)
def test_remove_keyword(source: str, expected: str) -> None:
    edit = RemoveKeyword(call(source, source), "k")
    assert applied(source, edit) == expected
    [(_, why)] = apply_fixes(expected, [fix(RemoveKeyword(call(expected, expected), "k"))]).skipped
    assert "no keyword k" in why


EXPRESSIONS = [
    ("x = g(y) * 2", "g(y)", "a + b", "x = (a + b) * 2"),
    ("x = g(y)", "g(y)", "a + b", "x = a + b"),
    ("x = (g(y))", "g(y)", "a + b", "x = (a + b)"),
    ("x = (  # why\n  g(y)\n)", "g(y)", "h(y)", "x = (  # why\n  h(y)\n)"),
    ("g(y).z", "g(y)", "-a", "(-a).z"),
    ("x.z", "x", "1", "(1).z"),
    ("for i in (1, 2): pass", "(1, 2)", "r", "for i in r: pass"),
    ("for i in 1, 2: pass", "1, 2", "(3, 4)", "for i in (3, 4): pass"),
    ("def f(): return[1]", "[1]", "x", "def f(): return(x)"),
    ("x = [1]if y else z", "[1]", "a", "x = (a)if y else z"),
    ("f(x for x in y)", "(x for x in y)", "[x]", "f([x])"),
    ("f('#' % x for x in y)", "('#' % x for x in y)", "[x]", "f([x])"),
    ("f(x)", "x", "y := 1", "f((y := 1))"),
    ("f(*x)", "x", "a or b", "f(*(a or b))"),
    ("f(k=x)", "x", "a or b", "f(k=a or b)"),
    ("f'{x}'", "x", "{1}", "f'{({1})}'"),
    ("x = a if b else c", "a if b else c", "d", "x = d"),
    ("x = a < b < c", "a < b < c", "d", "x = d"),
    ("x = a and b and c", "a and b and c", "d", "x = d"),
    ("é = 'ü', g('ö')", "g('ö')", "h", "é = 'ü', h"),
    ("x = f(\n    a,  # note\n)", "f(\n    a,  # note\n)", "g(a)", "# note\nx = g(a)"),
]


@pytest.mark.parametrize(("source", "old", "new", "expected"), EXPRESSIONS)
def test_replace_expression(source: str, old: str, new: str, expected: str) -> None:
    assert applied(source, ReplaceExpression(at(source, old, ast.expr), new)) == expected


STATEMENTS = [
    ("a\n# why\nb  # then\nc\n", "b", "d", "a\n# why\nd  # then\nc\n"),
    ("a\n# why\nb  # then\nc\n", "b", "", "a\n# why\n# then\nc\n"),
    ("a; b; c\n", "b", "d", "a; d; c\n"),
    ("a; b; c\n", "b", "", "a; c\n"),
    ("a; b; c  # e\n", "c", "", "a; b  # e\n"),
    ("a; b; c  # e\n", "b", "if x:\n  y", "a\nif x:\n    y\nc  # e\n"),
    ("if x: a\n", "a", "d", "if x: d\n"),
    ("if x: a  # e\n", "a", "", "if x: pass  # e\n"),
    ("if x: a  # e\n", "a", "d\ng", "if x:\n    d\n    g  # e\n"),
    ("if x:\n\ta\nb\n", "a", "for i in y:\n    z\n", "if x:\n\tfor i in y:\n\t\tz\nb\n"),
    ("if x:\n  a\n  # end\n", "a", "", "if x:\n  pass\n  # end\n"),
    ("a\n\nb\n\nc\n", "b", "", "a\n\nc\n"),
    ("for x in y:  # one\n    a  # two\n    # three\nb\n", "for", "z = 1", "# one\n# two\n# three\nz = 1\nb\n"),
    ("@d\ndef f():\n    pass\n", "def f", "def g(): pass", "@d\ndef g(): pass\n"),
    ("if x:\r\n  a\r\n", "a", "b\nc\n", "if x:\r\n  b\r\n  c\r\n"),
    ("if x: y;\nz\n", "if", "w", "w\nz\n"),
    ("a", "a", "b", "b"),
]


@pytest.mark.parametrize(("source", "old", "new", "expected"), STATEMENTS)
def test_replace_statement(source: str, old: str, new: str, expected: str) -> None:
    assert applied(source, ReplaceStatement(stmt(source, old), new)) == expected


BEFORE = [
    ("a\n\n# why\nb\n", "b", "a\n\nn\n# why\nb\n"),
    ("#!/bin/x\n# why\nb\n", "b", "#!/bin/x\nn\n# why\nb\n"),
    ("# licence\n\n# why\nb\n", "b", "# licence\n\nn\n# why\nb\n"),
    ("a; b; c  # e\n", "b", "a\nn\nb; c  # e\n"),
    ("a; b\n", "a", "n\na; b\n"),
    ("if x: a; b  # e\n", "b", "if x:\n    a\n    n\n    b  # e\n"),
    ("if x: a\nelse: b\n", "b", "if x: a\nelse:\n    n\n    b\n"),
    ("class A:\n\tdef f(self): return 1\n", "return", "class A:\n\tdef f(self):\n\t\tn\n\t\treturn 1\n"),
    ("@d\n# why\ndef f(): pass\n", "def f", "n\n@d\n# why\ndef f(): pass\n"),
    ("if x:\n  async def f():\n    pass\n", "async", "if x:\n  n\n  async def f():\n    pass\n"),
    ("try: a\nexcept E: b\nfinally: c\n", "c", "try: a\nexcept E: b\nfinally:\n    n\n    c\n"),
    ("match x:\n  case 1: a\n", "a", "match x:\n  case 1:\n    n\n    a\n"),
]


@pytest.mark.parametrize(("source", "old", "expected"), BEFORE)
def test_insert_before(source: str, old: str, expected: str) -> None:
    assert applied(source, InsertBefore(stmt(source, old), "n")) == expected


AFTER = [
    ("a  # e\n# next\nb\n", "a", "a  # e\nn\n# next\nb\n"),
    ("a; b; c  # e\n", "a", "a\nn\nb; c  # e\n"),
    ("a; b;\n", "b", "a; b;\nn\n"),
    ("for x in y: a  # e\n", "a", "for x in y:\n    a  # e\n    n\n"),
    ("for x in y:\n  a\n  # end\nb\n", "for", "for x in y:\n  a\n  # end\nn\nb\n"),
    ("a", "a", "a\nn"),
    ("a\r\n", "a", "a\r\nn\r\n"),
]


@pytest.mark.parametrize(("source", "old", "expected"), AFTER)
def test_insert_after(source: str, old: str, expected: str) -> None:
    assert applied(source, InsertAfter(stmt(source, old), "n")) == expected


WRAP = [
    ("a\n# one\nb\n# two\nc  # e\nd\n", "b", "c", "a\nwith w:\n    # one\n    b\n    # two\n    c  # e\nd\n"),
    ("a; b; c  # e\n", "b", "b", "a\nwith w:\n    b\nc  # e\n"),
    ("a; b; c  # e\n", "b", "c", "a\nwith w:\n    b; c  # e\n"),
    ("if x: a; b\n", "a", "b", "if x:\n    with w:\n        a; b\n"),
    ("if x:\n\ta(\n\t\t1,\n\t)\n\tb\n", "a", "a", "if x:\n\twith w:\n\t\ta(\n\t\t\t1,\n\t\t)\n\tb\n"),
    ("if x:\n  s = '''\n  t\n'''\n", "s", "s", "if x:\n  with w:\n    s = '''\n  t\n'''\n"),
    ("for x in y:\r\n  a\r\n", "a", "a", "for x in y:\r\n  with w:\r\n    a\r\n"),
    ("a\n\nif x:\n  b\nelse:\n  c\nd\n", "if", "if", "a\n\nwith w:\n  if x:\n    b\n  else:\n    c\nd\n"),
]


@pytest.mark.parametrize(("source", "first", "last", "expected"), WRAP)
def test_wrap_statements(source: str, first: str, last: str, expected: str) -> None:
    assert applied(source, WrapStatements(stmt(source, first), stmt(source, last), "with w:")) == expected


def test_wrap_takes_statements_of_one_block_in_order() -> None:
    source = "a\nif x:\n    b\n"
    for first, last in (("a", "b"), ("if", "a")):
        result = apply_fixes(source, [fix(WrapStatements(stmt(source, first), stmt(source, last), "with w:"))])
        assert result.source == source
        assert "not of one block" in result.skipped[0][1]


DECORATE = [
    ("def f(): pass\n", "@d()\ndef f(): pass\n"),
    ("class A:\n  # why\n  async def f(self): pass\n", "class A:\n  # why\n  @d()\n  async def f(self): pass\n"),
    ("@a\n# why\ndef f(): pass\n", "@a\n# why\n@d()\ndef f(): pass\n"),
    ("@d()\ndef f(): pass\n", "@d()\ndef f(): pass\n"),
]


@pytest.mark.parametrize(("source", "expected"), DECORATE)
@pytest.mark.parametrize("text", ["d()", "@d()"])
def test_add_decorator(source: str, expected: str, text: str) -> None:
    [node] = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert applied(source, AddDecorator(span(source, node), text)) == expected


IMPORTS = [
    ("x = 1\n", ("torch", None), "import torch\n\nx = 1\n"),
    ("", ("torch", None), "import torch\n"),
    ('"""Doc."""\nx = 1\n', ("torch", None), '"""Doc."""\n\nimport torch\n\nx = 1\n'),
    ('"""Doc."""\n\nfrom __future__ import annotations\n\nx = 1\n', ("torch", None),
     '"""Doc."""\n\nfrom __future__ import annotations\n\nimport torch\n\nx = 1\n'),
    ("#!/bin/x\n# -*- coding: utf-8 -*-\nx = 1\n", ("torch", None),
     "#!/bin/x\n# -*- coding: utf-8 -*-\n\nimport torch\n\nx = 1\n"),
    ("# licence\n\n# why\nx = 1\n", ("torch", None), "# licence\n\nimport torch\n\n# why\nx = 1\n"),
    ("import os\n\nimport torch\nfrom torch import nn\n\nimport b\n", ("torch.utils.data", "DataLoader"),
     "import os\n\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n\nimport b\n"),
    ("import os\nimport sys\n\nx = 1\nimport json\n", ("torch", None),
     "import os\nimport sys\nimport torch\n\nx = 1\nimport json\n"),
    ("import torch\n", ("torch", None), None),
    ("import torch.nn\n", ("torch", None), None),
    ("try:\n    import torch\nexcept ImportError: pass\n", ("torch", None), None),
    ("try: import torch\nexcept ImportError: pass\n", ("torch", None), None),
    ("import os, torch as torch\n", ("torch", None), None),
    ("import torch.nn as torch\n", ("torch", None), "import torch.nn as torch\nimport torch\n"),
    ("import torch as t\n", ("torch", None), "import torch as t\nimport torch\n"),
    ("from torch import (\n    nn,\n)\n", ("torch", "nn"), None),
    ("from torch import nn as n\n", ("torch", "nn"), "from torch import nn as n\nfrom torch import nn\n"),
    ("from .torch import nn\n", ("torch", "nn"), "from .torch import nn\nfrom torch import nn\n"),
    ("if TYPE_CHECKING:\n    import torch\n", ("torch", None),
     "import torch\n\nif TYPE_CHECKING:\n    import torch\n"),
    ("def f():\n    import torch\n", ("torch", None), "import torch\n\ndef f():\n    import torch\n"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "wanted", "expected"), IMPORTS)
def test_add_import(source: str, wanted: tuple[str, str | None], expected: str | None) -> None:
    once = applied(source, AddImport(*wanted))
    assert once == (source if expected is None else expected)
    assert applied(once, AddImport(*wanted), AddImport(*wanted)) == once


def test_two_keywords_of_one_call_are_both_set_and_the_same_one_once() -> None:
    source = "f(a)\n"
    where = call(source, "f(a)")
    fixes = [fix(SetKeyword(where, "k", "1")), fix(SetKeyword(where, "j", "2")), fix(SetKeyword(where, "k", "1"))]
    assert apply_fixes(source, fixes) == Applied("f(a, k=1, j=2)\n", tuple(fixes), ())
    other = fix(SetKeyword(where, "k", "3"))
    assert apply_fixes(source, [fixes[0], other]) == Applied("f(a, k=1)\n", (fixes[0],), ((other, OVERLAPS),))


def test_of_nested_changes_the_first_wins() -> None:
    source = "f(g(a))\n"
    inner = fix(ReplaceExpression(call(source, "g(a)"), "h"))
    outer = fix(ReplaceExpression(call(source, "f(g(a))"), "i"))
    keyword = fix(SetKeyword(call(source, "g(a)"), "k", "1"))
    assert apply_fixes(source, [inner, outer]) == Applied("f(h)\n", (inner,), ((outer, OVERLAPS),))
    assert apply_fixes(source, [outer, inner]) == Applied("i\n", (outer,), ((inner, OVERLAPS),))
    assert apply_fixes(source, [keyword, outer]).source == "f(g(a, k=1))\n"
    assert apply_fixes(source, [inner, keyword]).skipped == ((keyword, OVERLAPS),)


def test_a_fix_is_applied_whole_or_not_at_all() -> None:
    source = "f(a)\nb\n"
    gone = Span(9, 0, 9, 4)
    bad = fix(SetKeyword(call(source, "f(a)"), "k", "1"), AddImport("torch"), RemoveKeyword(gone, "k"))
    good = fix(ReplaceStatement(stmt(source, "b"), "c"))
    result = apply_fixes(source, [bad, good])
    assert result.source == "f(a)\nc\n"
    assert result.applied == (good,)
    assert "not there: no call at line 9, column 1" in result.skipped[0][1]


def test_one_fix_may_insert_beside_what_it_replaces() -> None:
    source = "if x: a\n"
    where = stmt(source, "a")
    assert applied(source, InsertBefore(where, "b"), ReplaceStatement(where, "c")) == "if x:\n    b\n    c\n"
    wrapped = applied(source, WrapStatements(where, where, "with w:"), InsertAfter(where, "b"))
    assert wrapped == "if x:\n    with w:\n        a\n    b\n"


def test_what_would_not_compile_is_left_out_and_the_rest_applied() -> None:
    source = "a\nb\nc\nd\n"
    new = {"a": "w", "b": "break", "c": "y", "d": "await z"}
    fixes = [fix(ReplaceStatement(stmt(source, name), text)) for name, text in new.items()]
    result = apply_fixes(source, fixes)
    assert result.source == "w\nb\ny\nd\n"
    assert [each for each, _ in result.skipped] == [fixes[1], fixes[3]]
    assert "'break' outside loop" in result.skipped[0][1]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("print 'a'\n", "Python cannot parse the file"),
        ("\x0cclass A: pass\n", "form feeds"),
        ("x = " + "+".join("1" * 20_000) + "\n", "recursion"),
    ],
)
def test_a_file_that_cannot_be_rewritten_comes_back_as_it_is(source: str, why: str) -> None:
    result = apply_fixes(source, [fix(AddImport("torch"))])
    assert result.source == source
    assert why in result.skipped[0][1]


@pytest.mark.parametrize(
    "edit",
    [
        SetKeyword(Span(1, 0, 1, 4), "k", "1 +"),
        ReplaceExpression(Span(1, 0, 1, 4), "x = 1"),
        ReplaceStatement(Span(1, 0, 1, 4), "if x"),
        WrapStatements(Span(1, 0, 1, 4), Span(1, 0, 1, 4), "x = 1;"),
        AddDecorator(Span(1, 0, 1, 4), "d"),
        AddImport("a b"),
    ],
)
def test_an_edit_that_makes_no_sense_is_skipped(edit: Edit) -> None:
    result = apply_fixes("f(a)\n", [fix(edit)])
    assert result.source == "f(a)\n"
    assert len(result.skipped) == 1


def test_an_elif_is_no_statement_of_a_block() -> None:
    source = "if a:\n    b\nelif c:\n    d\n"
    result = apply_fixes(source, [fix(InsertBefore(stmt(source, "elif"), "n"))])
    assert "elif" in result.skipped[0][1]
    assert applied(source, ReplaceExpression(at(source, "c", ast.expr), "e")) == source.replace("c:", "e:")


def test_importing_the_types_of_findings_does_not_import_libcst() -> None:
    command = "import sys, whet.auditor.finding; sys.exit('libcst' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


@given(
    before=st.text(alphabet="ab\n\r\x0c ", max_size=40),
    after=st.text(alphabet="ab\n\r\x0c ", max_size=40),
    name=st.sampled_from(["a.py", "d/ü b.py"]),
)
@settings(max_examples=25, deadline=None)
def test_git_applies_the_diff(tmp_path_factory: pytest.TempPathFactory, before: str, after: str, name: str) -> None:
    folder = tmp_path_factory.mktemp("diff")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(before.encode())
    patch = unified_diff(name, before, after)
    assert bool(patch) == (before != after)
    if patch:
        command = ["git", "-c", "core.autocrlf=false", "apply", "--unidiff-zero", "-"]
        subprocess.run(command, input=patch.encode(), cwd=folder, check=True, capture_output=True)
    assert path.read_bytes() == after.encode()


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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=300, deadline=None)
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
@settings(max_examples=150, deadline=None)
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
