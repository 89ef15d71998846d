"""The example: every flaw that was planted is found, and its fast version is what the fixes make of the slow one."""

import subprocess
import sys
from pathlib import Path

import pytest

from whet.auditor.collect import SourceFile
from whet.auditor.engine import inspect_files
from whet.auditor.fixing import apply_fixes

EXAMPLE = Path(__file__).parents[2] / "examples" / "latentwire"
PLANTED = {
    "data.py": {"DAT104", "DAT107"},
    "losses.py": {"CMP105"},
    "models.py": {"CMP102", "MOV104"},
    "train.py": {
        *("DAT101", "DAT106", "MOV101", "PRE101", "CMP101", "CMP106"),
        *("MEM101", "SYN101", "INF101", "INF104"),
    },
}


def _files(folder: str) -> list[SourceFile]:
    return [SourceFile(path.name, path.read_text(encoding="utf-8")) for path in sorted((EXAMPLE / folder).glob("*.py"))]


@pytest.mark.parametrize("name", list(PLANTED))
def test_what_was_planted_is_found(name: str) -> None:
    found = {finding.code for finding in inspect_files(_files("slow")).findings if finding.path == name}
    assert found >= PLANTED[name]


def test_the_readme_names_every_flaw() -> None:
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for codes in PLANTED.values():
        for code in codes:
            assert code in text, code


def test_fast_is_slow_with_the_fixes_that_paid() -> None:
    slow, fast = _files("slow"), {file.path: file.text for file in _files("fast")}
    findings = [finding for finding in inspect_files(slow).findings if finding.code in ("CMP105", "DAT106")]
    for file in slow:
        fixes = [finding.fix for finding in findings if finding.path == file.path and finding.fix is not None]
        assert apply_fixes(file.text, fixes).source == fast[file.path]


RUN_BOTH = """
import runpy, sys
from pathlib import Path
example, own = Path(sys.argv[1]), sys.path[1:]
for folder, samples, batches in (("slow", "1", "4"), ("fast", "4", "1")):
    sys.path = [str(example / folder), *own]
    sys.argv = ["train.py", "--print_every", "1", "--steps", "3", "--num_held_out", "2"]
    sys.argv += ["--batch_size", samples, "--grad_accum", batches]
    runpy.run_path(str(example / folder / "train.py"), run_name="__main__")
    for name in ("data", "losses", "models"):
        assert Path(sys.modules.pop(name).__file__).parent == example / folder
"""


def test_both_train_alike() -> None:
    """Three optimiser steps of four samples each, at the same printed losses."""
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", RUN_BOTH, str(EXAMPLE)], capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(printed) == 6
    assert printed[:3] == printed[3:]
