"""Every snippet of the README and the docs runs as it stands; only sweeps are cut, and all techniques left out.

A tuning run has a large budget and does not wait for quiet, so that a busy machine changes nothing. The original is
what is saved, loaded and replayed; what becomes of techniques is in test_tune.py.

A ```python block is a program, and a block with a title, as ```python title="model.py", is a file of that name. In a
```sh block each line that begins with `whet`, `torchrun` or `python` runs; `make` and `pip` lines are what continuous
integration itself runs. The blocks of one document run in order, in one directory, so that a later one may use what an
earlier one wrote.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPython

from whet.techniques import TABLE
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.kind_options import PLAN_TECHNIQUES

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "docs/reports"  # as whet wrote them; their snippets are parts of the audited code
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.is_relative_to(REPORTS)]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
_BUDGET = re.compile(r"--budget \S+")
_PROCESSES = re.compile(r"--processes \d+")
_SIZES = re.compile(r"(--(?:batch|seq) \d+),\S+")
_BUDGET_S = re.compile(r"(whet\.tune\(.*)budget_s=\d+")


@pytest.fixture(scope="module")
def python(children_server: None) -> Iterator[ForkedPython]:
    with ForkedPython() as running:
        yield running


@dataclass(frozen=True)
class File:
    """Name a file that a document shows, and hold what it shows of it."""

    name: str
    text: str


def _parts(document: Path) -> list[list[str] | File]:
    """Return the files of a document, and what python is to be called with for each program, in their order."""
    commands: list[list[str] | File] = []
    for language, title, body in _BLOCK.findall(document.read_text(encoding="utf-8")):
        if title:
            commands.append(File(title, body))
        elif language == "python":
            commands.append(["-c", _BUDGET_S.sub(rf"\1budget_s=240, exclude={list(TABLE)}", body)])
        elif language == "sh":
            for line in body.splitlines():
                if line.startswith("whet tune"):
                    left_out = [*(TRAINING_TABLE if "train" in line and "--training" not in line else TABLE)]
                    names = ",".join([*left_out, *(PLAN_TECHNIQUES if "--nproc" in line else ())])
                    line = _BUDGET.sub(f"--budget 4m --on-busy go-on --exclude {names}", line)
                line = _SIZES.sub(r"\1", _PROCESSES.sub("--processes 1", line))
                if line.startswith("whet audit"):
                    line = _BUDGET.sub("--budget 1s", line)
                words = shlex.split(line, comments=True)
                if words[:1] == ["whet"]:
                    commands.append(["-m", *words])
                elif words[:1] == ["torchrun"]:
                    commands.append(["-m", "torch.distributed.run", *words[1:]])
                elif words[:1] == ["python"] and "benchmarks/" not in line:
                    commands.append(words[1:])
                elif words and words[0] not in ("make", "python", "pip", "git", "cd"):
                    raise AssertionError(f"{document.name}: a line of no known kind: {line}")
    return commands


def _tunes(document: Path) -> bool:
    """Return whether a document other than the README tunes, which takes up to minutes."""
    text = "\n".join(body for _, _, body in _BLOCK.findall(document.read_text(encoding="utf-8")))
    return document.name != "README.md" and re.search(r"^whet tune|whet\.tune\(", text, re.MULTILINE) is not None


def _marked(document: Path) -> Any:
    return pytest.param(document, marks=[pytest.mark.thorough] if _tunes(document) else [], id=document.name)


@pytest.mark.parametrize("document", list(map(_marked, DOCUMENTS)))
@pytest.mark.timeout(420)
def test_the_snippets_run(document: Path, tmp_path: Path, python: ForkedPython) -> None:
    for command in _parts(document):
        if isinstance(command, File):
            (tmp_path / command.name).write_text(command.text, encoding="utf-8")
            continue
        done = python.run(command, tmp_path)
        fine = (0, 1) if command[1:3] == ["whet", "audit"] else (0,)  # 1: something was found
        assert done.returncode in fine, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_readme_has_snippets_to_run() -> None:
    parts = _parts(ROOT / "README.md")
    assert sum(isinstance(part, list) for part in parts) >= 4
    assert any(isinstance(part, File) for part in parts)
