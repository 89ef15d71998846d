import os
import subprocess
import sys
from pathlib import Path

import pytest

from whet_audit.collect import Collected, SourceFile, collect, does_not_parse


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(*names: str, text: str = "x = 1\n") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def paths(found: Collected) -> list[str]:
    return [file.path for file in found.files]


def lines(found: Collected) -> list[str]:
    return [problem.text for problem in found.problems]


def test_walks_directories_and_leaves_out_what_is_not_the_users() -> None:
    put("src/b.py", "src/a.py", "src/deep/c.py", "src/stub.pyi", "src/readme.md")
    put("src/.git/x.py", "src/__pycache__/x.py", "src/node_modules/x.py", "src/site-packages/x.py", "src/.tox/x.py")
    put("src/build/lib/x.py", "src/dist/x.py", "src/env/lib/x.py", "src/env/pyvenv.cfg", "src/.venv/pyvenv.cfg")
    put("src/model/build/__init__.py", "src/model/env/x.py", "src/.venv/x.py")
    assert paths(collect([Path("src")])) == [
        "src/a.py",
        "src/b.py",
        "src/deep/c.py",
        "src/model/build/__init__.py",
        "src/model/env/x.py",
    ]


@pytest.mark.parametrize("named", ["env", "env/lib/site-packages", "env/lib/site-packages/torch", "env/x.py"])
def test_what_is_named_is_audited_wherever_it_lies(named: str) -> None:
    put("env/pyvenv.cfg", "env/lib/site-packages/torch/a.py", "env/x.py")
    found = paths(collect([Path(named)]))
    assert found == (["env/x.py"] if "site" not in named else ["env/lib/site-packages/torch/a.py"])


def test_each_file_once_and_loops_end(here: Path) -> None:
    put("a/x.py", "a/b/y.py")
    Path("a/b/up").symlink_to(here / "a")
    Path("a/self").symlink_to("self")
    Path("a/same.py").symlink_to("x.py")
    found = collect([Path("a"), Path("a/x.py"), Path("./a/../a"), here / "a"])
    assert paths(found) == ["a/x.py", "a/b/y.py"]


def test_a_link_to_a_directory_elsewhere_is_followed(tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "z.py").write_text("", encoding="utf-8")
    Path("a").mkdir()
    Path("a/link").symlink_to(other)
    assert paths(collect([Path("a")])) == ["a/link/z.py"]


def test_paths_are_relative_below_the_working_directory_else_absolute(tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "z.py"
    other.write_text("", encoding="utf-8")
    put("a/x.py")
    assert paths(collect([Path("a/x.py").absolute(), Path(os.path.relpath(other))])) == ["a/x.py", str(other)]


def test_every_unusable_path_is_one_line_and_the_rest_goes_on() -> None:
    put("ok.py", "text.txt", "no_suffix")
    put("stub.pyi")
    os.mkfifo("pipe.py")
    put("bad/latin.py", "bad/nul.py")
    Path("bad/latin.py").write_bytes(b"# fine\ns = '\xe9'\n")
    Path("bad/nul.py").write_bytes(b"s = '\0'\n")
    names = ["missing.py", "ok.py/below.py", "text.txt", "no_suffix", "stub.pyi", "pipe.py", "bad", "ok.py"]
    found = collect(map(Path, names))
    assert paths(found) == ["ok.py"]
    assert lines(found) == [
        "missing.py: there is no such file or directory",
        "ok.py/below.py: there is no such file or directory",
        "text.txt: is neither a Python file nor a notebook",
        "no_suffix: is neither a Python file nor a notebook",
        "pipe.py: is no regular file",
        "bad/latin.py:2: does not parse: it is not UTF-8, and declares no other encoding",
        "bad/nul.py:1: does not parse: it holds a NUL byte",
    ]
    assert found.notes == ("stub.pyi: a stub, with no code to audit",)


def test_a_script_without_a_suffix_is_known_by_its_first_line() -> None:
    put("train", text="#!/usr/bin/env python3\nx = 1\n")
    assert paths(collect([Path("train")])) == ["train"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_is_one_line() -> None:
    put("locked.py", "dir/x.py")
    Path("locked.py").chmod(0)
    Path("dir").chmod(0)
    try:
        found = collect([Path("locked.py"), Path("dir")])
    finally:
        Path("dir").chmod(0o755)
    assert lines(found) == ["locked.py: cannot be read: Permission denied", "dir: cannot be read: Permission denied"]


def test_an_unreadable_file_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    put("locked.py", "ok.py")
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "locked.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    found = collect([Path()])
    assert paths(found) == ["ok.py"]
    assert lines(found) == ["locked.py: cannot be read: Permission denied"]


def test_large_generated_files_are_skipped_with_a_note() -> None:
    row = "    12345678,\n"
    put("said.py", text="# Generated by a tool. DO NOT EDIT.\nx = [\n" + row * 90_000 + "]\n")
    put("wide.py", text="x = [" + "1, " * 400_000 + "]\n")
    put("typed.py", text="def f(x):\n    return x + 1\n\n\n" * 40_000)
    put("small.py", text="# Generated by a tool.\n")
    found = collect([Path()])
    assert paths(found) == ["small.py", "typed.py"]
    assert [note.partition(":")[0] for note in found.notes] == ["said.py", "wide.py"]
    assert all(note.endswith("generated: skipped") for note in found.notes)


def test_an_empty_file_is_audited() -> None:
    put("empty.py", text="")
    assert collect([Path("empty.py")]).files == (SourceFile("empty.py", ""),)


def test_excluded() -> None:
    put("a/x.py", "a/old/y.py", "b.py")
    found = collect([Path("a"), Path("b.py")], is_excluded=lambda path: path.name in ("old", "b.py"))
    assert paths(found) == ["a/x.py"]
    assert found.notes == ("b.py: excluded by the settings",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nprint 'hello'\n", "f.py:2: does not parse: a print statement, as in Python 2"),
        ("def f(:\n", "f.py:1: does not parse: invalid syntax"),
        ("x = " + "(" * 400 + ")" * 400, "f.py:1: does not parse: too many nested parentheses"),
    ],
)
def test_what_does_not_parse_is_one_line(text: str, said: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        compile(text, "f.py", "exec", flags=0x400)
    assert does_not_parse(SourceFile("f.py", text), caught.value).text == said


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError()])
def test_expressions_too_deep_for_the_parser(error: Exception) -> None:
    assert does_not_parse(SourceFile("f.py", ""), error).text == (
        "f.py:1: does not parse: its expressions are nested too deeply"
    )


def test_lines_are_pythons() -> None:
    file = SourceFile("f.py", "a = 1\x0c\r\nb = '\u2028'\rc\n")
    assert [file.line(n) for n in (1, 2, 3, 4, 9)] == ["a = 1\x0c", "b = '\u2028'", "c", "", ""]
    assert file.place(2) == (None, 2)


def test_names_that_are_no_text(here: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    try:
        put(name)
    except OSError:
        pytest.skip("this file system takes text only")
    assert paths(collect([here])) == [name]


def test_no_heavy_library_is_imported() -> None:
    code = (
        "import sys, whet_audit.collect, whet_audit.noqa, whet_audit.settings, whet_audit.baseline\n"
        "import whet_audit.report, whet_audit.formats.full, whet_audit.formats.sarif, whet_audit.card\n"
        "print({'torch', 'numpy', 'libcst', 'pydantic', 'jinja2', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tests_and_examples_are_left_out_unless_they_are_named() -> None:
    put("a/model.py", "a/tests/x.py", "a/sub/Test/y.py", "a/examples/run.py", "a/examples/tests/z.py", "a/test_net.py")
    put("a/test_this.py", text="def test_this(): pass\n")
    put("a/that_test.py", text="import unittest\n")
    found = collect([Path("a")])
    assert paths(found) == ["a/model.py", "a/test_net.py"]  # one of these files tests nothing: it is an evaluation
    assert [file.path for file in found.beside] == ["a/examples/run.py"]
    assert found.num_left_out == 6
    assert paths(collect([Path("a/tests"), Path("a/that_test.py")])) == ["a/tests/x.py", "a/that_test.py"]
    both = collect([Path("a"), Path("a/examples")])
    assert paths(both) == ["a/model.py", "a/test_net.py", "a/examples/run.py"]
    assert (both.beside, both.num_left_out) == ((), 5)
