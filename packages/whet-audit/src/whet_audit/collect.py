"""The files an audit reads: those named, and those below the directories named."""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from whet_audit.decoding import Undecodable, decode
from whet_audit.errors import reason
from whet_audit.notebook import DamagedNotebook, read_notebook
from whet_audit.written_settings import SUFFIXES

_SKIPPED = frozenset(
    (
        ".git .hg .svn .tox .nox .eggs .mypy_cache .ruff_cache .pytest_cache .ipynb_checkpoints __pycache__ "
        "__pypackages__ node_modules site-packages"
    ).split()
)
_OUTPUTS = ("build", "dist")  # a package may be called so: skipped unless it is one
_LARGE_BYTES = 1_000_000
_LARGE_SETTINGS_BYTES = 100_000  # data, not settings
_TOO_LARGE_BYTES = 20_000_000  # takes gigabytes to parse
_LONG_LINE = 200  # mean characters a line that nobody types
_GENERATED = re.compile(rb"generated|do not (edit|modify)", re.IGNORECASE)
_TESTS = {"tests", "test"}
_EXAMPLES = {"examples", "example"}
_TEST_FILE = re.compile(r"test_\w+\.py|\w+_test\.py")
_TESTS_SOMETHING = re.compile(rb"^\s*(async )?def test_|^(import|from) (pytest|unittest)\b", re.MULTILINE)
_LINE_ENDS = re.compile(r"\r\n|\r|\n")  # Python's; str.splitlines knows more


@dataclass(frozen=True)
class SourceFile:
    """A file to audit. path: relative to the working directory where it lies below it.

    cell_starts: of a notebook, the line in `text` at which each of its cells starts. encoding: to write it back.
    """

    path: str
    text: str
    cell_starts: tuple[int, ...] = ()
    encoding: str = "utf-8"

    @cached_property
    def lines(self) -> list[str]:
        """Without their ends."""
        return _LINE_ENDS.split(self.text)

    def line(self, number: int, cell: int | None = None) -> str:
        """One line, from 1; in a cell of a notebook, from 1 as well. Empty beyond the end."""
        index = number - 1 if cell is None else self.cell_starts[cell - 1] + number - 2
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    def place(self, number: int) -> tuple[int | None, int]:
        """The cell a line of `text` lies in, from 1, and the line in it; None and the line where there are no cells."""
        if not self.cell_starts:
            return None, number
        cell = max(1, bisect_right(self.cell_starts, number))
        return cell, number - self.cell_starts[cell - 1] + 1


@dataclass(frozen=True)
class Problem:
    """Why a file, or a part of it, was not audited. line: 0 where it concerns no line."""

    path: str
    line: int
    message: str

    @property
    def text(self) -> str:
        """As it is printed, on one line."""
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Collected:
    """Files to audit, what could not be read, and what was left out on purpose.

    beside: examples and files of settings, which are not audited, and show how the files are used. num_left_out: files
    of tests and examples.
    """

    files: tuple[SourceFile, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    beside: tuple[SourceFile, ...] = ()
    num_left_out: int = 0


def collect(paths: Iterable[Path], *, is_excluded: Callable[[Path], bool] = lambda path: False) -> Collected:
    """Read the Python files and notebooks named, and those below the directories named, each once, in order.

    Below a directory, tests and examples are left out; where they are named themselves, they are not.
    is_excluded: asked with absolute paths of files and directories, those named among them.
    """
    collector, others = _Collector(is_excluded), _Collector(is_excluded)
    for path in paths:
        collector.add(path)
    left_out = {path: is_example for path, is_example in collector.left_out.items() if collector.is_new(path)}
    for path, is_example in left_out.items():
        if is_example:
            others.read(path)
    for path in collector.settings:
        others.read(path)
    return Collected(
        tuple(collector.files),
        tuple(collector.problems),
        tuple(collector.notes),
        beside=tuple(others.files),
        num_left_out=len(left_out),
    )


def does_not_parse(file: SourceFile, error: Exception) -> Problem:
    """What `ast.parse` raised, in one line: SyntaxError, ValueError, RecursionError or MemoryError."""
    if isinstance(error, SyntaxError):
        line, message = error.lineno or 1, str(error.msg)
        if message.startswith("Missing parentheses in call to") and "print" in message:
            message = "a print statement, as in Python 2"
    elif isinstance(error, RecursionError | MemoryError):
        line, message = 1, "its expressions are nested too deeply"
    else:
        line, message = 1, reason(error)
    cell, line = file.place(line)
    where = "" if cell is None else f"cell {cell}, line {line}: "
    return Problem(file.path, 0 if cell is not None else line, f"{where}does not parse: {message}")


def shown(path: Path) -> str:
    """A path as people read it: relative to the working directory where it lies below it, else absolute."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links the user named
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


class _Collector:
    def __init__(self, is_excluded: Callable[[Path], bool]) -> None:
        self.files: list[SourceFile] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.left_out: dict[Path, bool] = {}  # files of tests (False) and examples (True)
        self.settings: list[Path] = []  # files that set options of the code
        self._is_excluded = is_excluded
        self._seen: set[str] = set()  # resolved: files may be named twice

    def add(self, path: Path) -> None:
        try:
            kind = path.stat().st_mode
        except OSError as error:
            message = "there is no such file or directory"
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                message = f"cannot be read: {error.strerror or error}"
            self.problems.append(Problem(shown(path), 0, message))
            return
        except ValueError as error:  # a NUL in the name
            self.problems.append(Problem(repr(str(path)), 0, f"cannot be read: {error}"))
            return
        if self._is_excluded(path.absolute()):
            self.notes.append(f"{shown(path)}: excluded by the settings")
        elif stat.S_ISDIR(kind):
            for file in self._below(path, set()):
                folders = {folder.lower() for folder in file.relative_to(path).parts[:-1]}
                if folders & _TESTS or _is_test(file):
                    self.left_out[file] = False
                elif folders & _EXAMPLES:
                    self.left_out[file] = True
                else:
                    self.read(file)
        elif path.suffix == ".pyi":
            self.notes.append(f"{shown(path)}: a stub, with no code to audit")
        elif path.suffix in (".py", ".ipynb") or self._is_script(path):
            self.read(path)
        else:
            self.problems.append(Problem(shown(path), 0, "is neither a Python file nor a notebook"))

    def _below(self, directory: Path, seen: set[str]) -> Iterator[Path]:
        """Python files and notebooks below a directory: of each directory the files, then what lies deeper.

        seen: the directories that were gone through, resolved, which ends loops of links.
        """
        resolved = os.path.realpath(directory)
        if resolved in seen:
            return
        seen.add(resolved)
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: (entry.is_symlink(), entry.name))
        except OSError as error:
            self.problems.append(Problem(shown(directory), 0, f"cannot be read: {error.strerror or error}"))
            return
        deeper = []
        for entry in entries:
            path = directory / entry.name
            if _is_directory(entry):
                if not _is_skipped(path) and not self._is_excluded(path.absolute()):
                    deeper.append(path)
            elif path.suffix in SUFFIXES and entry.is_file() and entry.stat().st_size <= _LARGE_SETTINGS_BYTES:
                self.settings.append(path)
            elif path.suffix in (".py", ".ipynb") and not self._is_excluded(path.absolute()):
                yield path
        for path in deeper:
            yield from self._below(path, seen)

    def read(self, path: Path) -> None:
        if not self.is_new(path):
            return
        name = shown(path)
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would make the audit wait for ever
                self.problems.append(Problem(name, 0, "is no regular file"))
                return
            data = path.read_bytes()
        except OSError as error:
            self.problems.append(Problem(name, 0, f"cannot be read: {error.strerror or error}"))
            return
        if path.suffix == ".ipynb":
            self._read_notebook(name, data)
            return
        why = _too_large(data)
        if why:
            self.notes.append(f"{name}: {len(data) / 1e6:.1f} MB, {why}: skipped")
            return
        try:
            text, encoding = decode(data)
        except Undecodable as error:
            self.problems.append(Problem(name, error.line, f"does not parse: {error.message}"))
            return
        self.files.append(SourceFile(name, text, (), encoding))

    def _read_notebook(self, name: str, data: bytes) -> None:
        try:
            notebook = read_notebook(data)
        except DamagedNotebook as error:
            self.problems.append(Problem(name, error.line, error.message))
            return
        if notebook.language != "python":
            self.notes.append(f"{name}: a notebook in {notebook.language}: skipped")
            return
        if notebook.problem:
            self.problems.append(Problem(name, 0, notebook.problem))
        self.files.append(SourceFile(name, notebook.text, notebook.cell_starts))

    def is_new(self, path: Path) -> bool:
        resolved = os.path.realpath(path)
        if resolved in self._seen:
            return False
        self._seen.add(resolved)
        return True

    def _is_script(self, path: Path) -> bool:
        """Whether a file without a suffix starts as a Python script."""
        if path.suffix or not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                first = file.readline(200)
        except OSError:
            return True  # reading it says why not
        return first.startswith(b"#!") and b"python" in first


def _is_test(file: Path) -> bool:
    """Whether a file holds tests by its name and what is in it: test_model.py may as well be an evaluation."""
    if not _TEST_FILE.fullmatch(file.name):
        return False
    try:
        return _TESTS_SOMETHING.search(file.read_bytes()) is not None
    except OSError:
        return False  # reading it says why not


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_skipped(directory: Path) -> bool:
    if directory.name in _SKIPPED or (directory / "pyvenv.cfg").is_file():
        return True
    return directory.name in _OUTPUTS and not (directory / "__init__.py").is_file()


def _too_large(data: bytes) -> str:
    """Why a file is too large to be somebody's code; empty where it is not."""
    if len(data) > _TOO_LARGE_BYTES:
        return "too large to audit"
    if len(data) <= _LARGE_BYTES:
        return ""
    is_generated = _GENERATED.search(data[:4096]) is not None or len(data) > _LONG_LINE * (data.count(b"\n") + 1)
    return "generated" if is_generated else ""
