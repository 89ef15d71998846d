"""What a script's process needs before it starts: another malloc is preloaded, or its absence is said."""

import os
import sys
from pathlib import Path

import pytest
import torch
from preloaded import made_allocator
from script_runs import TRAIN, run

from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError
from whet.measure.machine import describe
from whet.scripts.injection.applying import applicable, apply
from whet.scripts.injection.command import ScriptCommand, run_with_recipe
from whet.scripts.injection.loader_passes import LoaderPasses
from whet.scripts.injection.loop_finder import FoundLoop
from whet.scripts.injection.needed_environment import needed_environment

JEMALLOC = Step(technique="allocator", options={"kind": "jemalloc"})
FIND = "whet.techniques.training.allocator.find"


@pytest.mark.parametrize("is_used", [True, False])
def test_a_script_is_started_with_the_library_of_its_recipe(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_used: bool
) -> None:
    """If the process does not use it all the same, nothing is trained."""
    library = made_allocator(place.parent / "libjemalloc.so.2", is_used=is_used)
    monkeypatch.setattr(FIND, lambda name: library)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    (place / "train.py").write_text(TRAIN + "import os; open('preloaded.txt', 'w').write(os.environ['LD_PRELOAD'])")
    command = ScriptCommand.checked([sys.executable, "train.py", "2"])
    scratch = place.parent / "messages"
    scratch.mkdir()
    code = run_with_recipe(command, Recipe(kind="training", steps=(JEMALLOC,)), scratch)
    said = capfd.readouterr().err
    if is_used:
        assert (code, said) == (0, "whet: allocator(kind=jemalloc) applied to Sequential\n")
        assert (place / "preloaded.txt").read_text() == str(library)
    else:
        assert said.startswith(f"error: allocator cannot be applied here: LD_PRELOAD names {library}, but this process")
        assert code == 2
        assert not (place / "log.txt").exists()
    assert "LD_PRELOAD" not in os.environ


def test_a_library_that_is_not_installed_is_said_before_the_script_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FIND, lambda name: None)
    Recipe(kind="training", steps=(JEMALLOC,)).write(place / "recipe.toml")
    (place / "train.py").write_text("open('log.txt', 'w')")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--recipe", "recipe.toml", "--", sys.executable, "train.py"])
    assert ended.value.code == 2
    why = "jemalloc is not installed; on Debian and Ubuntu: apt install libjemalloc2"
    assert capfd.readouterr().err == f"error: allocator cannot be applied here: {why}\n"
    found = run(place, TRAIN, ["100"], steps=(JEMALLOC,))
    assert found.record is None and found.failure == f"allocator cannot be applied here: {why}"
    assert not (place / "log.txt").exists()


def test_what_is_preloaded_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FIND, lambda name: Path(f"/usr/lib/lib{name}.so.2"))
    monkeypatch.setenv("LD_PRELOAD", "/opt/first.so:/opt/second.so")
    steps = [Step(technique="fused_optimizer"), JEMALLOC]
    assert needed_environment(steps) == {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2:/opt/first.so:/opt/second.so"}
    assert needed_environment(steps[:1]) == {}
    monkeypatch.delenv("LD_PRELOAD")
    assert needed_environment(steps) == {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}


def test_what_a_new_process_could_use_is_tried_and_this_one_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(FIND, lambda name: Path("/usr/lib/libjemalloc.so.2") if name == "jemalloc" else None)
    model = torch.nn.Linear(4, 1)
    passes = LoaderPasses()
    try:
        found = FoundLoop(model, torch.optim.AdamW(model.parameters()), passes)
        kinds = {step.options["kind"] for step in applicable(found, describe())[0] if step.technique == "allocator"}
        assert kinds == {"keep", "jemalloc"}
        with pytest.raises(RecipeError, match=r"start the program as LD_PRELOAD=/usr/lib/libjemalloc.so.2 python"):
            apply(found, [JEMALLOC], describe())
    finally:
        passes.end()
