import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet_audit.collect import SourceFile, collect
from whet_audit.notebook import DamagedNotebook, Notebook, read_notebook


def cell(source: Any, kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": source, "outputs": []}


def notebook(*cells: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **more}).encode()


def as_file(made: Notebook) -> SourceFile:
    return SourceFile("n.ipynb", made.text, made.cell_starts)


def test_code_cells_become_one_text_and_lines_lead_back() -> None:
    made = read_notebook(
        notebook(cell("# Title", "markdown"), cell(["import torch\n", "x = 1"]), cell("", "code"), cell("y = 2\nz = 3"))
    )
    assert ast.unparse(ast.parse(made.text)) == "import torch\nx = 1\ny = 2\nz = 3"
    file = as_file(made)
    found = {file.line(number): file.place(number) for number in range(1, len(file.lines))}
    assert found["import torch"] == (2, 1)
    assert found["x = 1"] == (2, 2)
    assert found["y = 2"] == (4, 1)
    assert found["z = 3"] == (4, 2)
    assert file.line(2, cell=4) == "z = 3"


def test_nbformat_3() -> None:
    old = {"nbformat": 3, "metadata": {}, "worksheets": [{"cells": [{"cell_type": "code", "input": ["a = 1\n", "b"]}]}]}
    assert read_notebook(json.dumps(old).encode()).text == "a = 1\nb\n"


MAGICS = [
    "%matplotlib inline",
    "!pip install 'torch' (it's",
    "?torch.nn",
    "torch.nn.Linear?",
    "x??",
    "%time y = f(1)",
    "files = !ls -l",
    "t = %timeit -o f()",
    "if x:\n    !nvidia-smi",
    "!pip install \\\n    torch \\\n    numpy",
]
PLAIN = [
    "a = 1",
    "b = (a\n% 3)",
    "s = '''\n!not a command\n%neither\n'''",
    "t = f(  # (\n    '[',\n    a)\n",
    "c = a \\\n% 2",
    "for i in range(3):\n    a += i",
]


@pytest.mark.parametrize("magic", MAGICS)
def test_magics_leave_python_that_parses_line_for_line(magic: str) -> None:
    source = f"a = 1\n{magic}\nb = 2"
    made = read_notebook(notebook(cell(source)))
    assert made.problem == ""
    assert made.text.count("\n") == source.count("\n") + 1
    names = [n.id for n in ast.walk(ast.parse(made.text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    assert {"a", "b"} <= set(names)


@given(st.lists(st.tuples(st.sampled_from(MAGICS + PLAIN), st.sampled_from(PLAIN)), min_size=1, max_size=6))
def test_lines_of_python_stay_as_they_are_where_they_are(pieces: list[tuple[str, str]]) -> None:
    cells = [f"{first}\n{second}" for first, second in pieces]
    made = read_notebook(notebook(*map(cell, cells)))
    assert made.problem == ""
    ast.parse(made.text)
    file = as_file(made)
    for number, (first, second) in enumerate(pieces, start=1):
        plain = second.removesuffix("\n").split("\n")
        begin = first.removesuffix("\n").count("\n") + first.endswith("\n") + 2
        assert [file.line(begin + i, cell=number) for i in range(len(plain))] == plain


def test_cells_of_other_languages_are_left_out_and_timed_cells_are_kept() -> None:
    made = read_notebook(notebook(cell("%%bash\necho hi\n"), cell("%%time\nx = 1"), cell("\n%%capture out\ny = 2")))
    assert ast.unparse(ast.parse(made.text)) == "x = 1\ny = 2"
    assert as_file(made).place(made.text[: made.text.index("y =")].count("\n") + 1) == (3, 3)


def test_a_cell_that_does_not_parse_is_left_out_and_named() -> None:
    made = read_notebook(notebook(cell("x = 1"), cell("y = 2\nprint 'old'"), cell("def f(:")))
    assert ast.unparse(ast.parse(made.text)) == "x = 1"
    assert made.problem.startswith("cell 2, line 2: does not parse: ")
    assert made.problem.endswith("(and 1 more cells)")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"cells": 1}',
        b'{"cells": [1]}',
        b'{"cells": [{"cell_type": "code", "source": 5}]}',
        b'{"cells": [{"cell_type": "code", "source": [1]}]}',
    ],
)
def test_a_damaged_notebook_is_one_line(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DamagedNotebook):
        read_notebook(data)
    monkeypatch.chdir(tmp_path)
    Path("n.ipynb").write_bytes(data)
    found = collect([Path("n.ipynb")])
    assert found.files == ()
    assert len(found.problems) == 1
    assert "is no notebook" in found.problems[0].text
    assert "\n" not in found.problems[0].text


def test_a_notebook_in_another_language_is_skipped_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("n.ipynb").write_bytes(notebook(cell("x <- 1"), metadata={"language_info": {"name": "R"}}))
    found = collect([Path()])
    assert (found.files, found.problems, found.notes) == ((), (), ("n.ipynb: a notebook in R: skipped",))
