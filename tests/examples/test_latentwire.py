"""The example: every flaw that was planted is found, and its fast version is what the fixes make of the slow one."""

import subprocess
import sys
from pathlib import Path

import pytest

from whet.core.recipe import Recipe, Step
from whet.core.workload import TrainingWorkload
from whet.techniques.proof import gradients
from whet.techniques.training_technique import Exactness
from whet.tuner.training.opening import first_batches
from whet.workloads.target import resolve_any
from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.fixing import apply_fixes

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


RUN_ALL = """
import runpy, sys
from pathlib import Path
example, recipe, own = Path(sys.argv[1]), sys.argv[2], sys.path[1:]
runs = [("slow", "train", "1", "4"), ("fast", "train", "4", "1"), ("fast", "train_tuned", "4", "1")]
for folder, script, samples, batches in runs:
    sys.path = [str(example / folder), *own]
    sys.argv = ["train.py", "--print_every", "1", "--steps", "3", "--num_held_out", "2"]
    sys.argv += ["--batch_size", samples, "--grad_accum", batches]
    sys.argv += ["--recipe", recipe] if script == "train_tuned" else []
    runpy.run_path(str(example / folder / f"{script}.py"), run_name="__main__")
    for name in ("data", "losses", "models"):
        assert Path(sys.modules.pop(name).__file__).parent == example / folder
"""


@pytest.mark.slow
def test_all_train_alike(tmp_path: Path) -> None:
    """Three optimiser steps of four samples each, at the same printed losses, the last ones with an exact recipe."""
    pytest.importorskip("transformers")
    recipe = tmp_path / "recipe.toml"
    Recipe(kind="training", steps=(Step(technique="chunked_loss"), Step(technique="fused_optimizer"))).write(recipe)
    command = [sys.executable, "-c", RUN_ALL, str(EXAMPLE), str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(printed) == 9
    assert printed[:3] == printed[3:6] == printed[6:]


def test_only_the_loader_and_whet_are_new_in_the_tuned_loop() -> None:
    """Every line of train_tuned.py that train.py lacks names a batch, the prepared model, the recipe or whet."""
    old = set((EXAMPLE / "fast" / "train.py").read_text(encoding="utf-8").splitlines())
    new = (EXAMPLE / "fast" / "train_tuned.py").read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
    added = [line for line in new if line not in old]
    assert sum(line == "import whet" or "whet." in line for line in added) == 2
    assert all(any(word in line for word in ("whet", "model", "Batches", "batches", "recipe")) for line in added)


def test_the_workload_can_be_held_against_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen decoder is part of the model, so that a copy in float64 is one throughout."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "path", list(sys.path))
    workload = resolve_any(f"{EXAMPLE / 'fast' / 'workload.py'}:workload")
    for name in ("workload", "data", "losses", "models"):
        del sys.modules[name]
    assert isinstance(workload, TrainingWorkload)
    (batch,) = first_batches(workload, 1)
    few = [tuple(part[:2] for part in batch)]
    original = gradients.gradients_of(workload.model, workload.loss, few, seed=0)
    reference = gradients.reference_gradients(workload.model, workload.loss, few, seed=0)
    assert original
    assert not any("decoder" in name for name in original)
    assert gradients.judged(original, original, reference, Exactness.EXACT).error < 1e-4
