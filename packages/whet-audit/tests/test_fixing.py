"""Fixes: each edit in awkward surroundings."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spans import applied, at, call, fix, span, stmt
from whet_audit.finding import (
    AddDecorator,
    AddImport,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveKeyword,
    ReplaceExpression,
    ReplaceStatement,
    SetKeyword,
    Span,
    WrapStatements,
)
from whet_audit.fixing import OVERLAPS, Applied, apply_fixes, unified_diff

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
    command = "import sys, whet_audit.finding; sys.exit('libcst' in sys.modules)"
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
