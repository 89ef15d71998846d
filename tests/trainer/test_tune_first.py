"""Test whet train --tune: a search before the run, which can be stopped, gone on with, and whose recipe stays."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from tiny_run import tables

import whet.trainer.tuned
from processors import NEEDS_BFLOAT16
from whet.core.recipe import Recipe, Step
from whet.core.workload import TrainingWorkload
from whet.errors import OptionError
from whet.trainer.train import train
from whet.trainer.tuned import TUNED, is_tuned
from whet.tuner.listener import Listener
from whet.tuner.study import FILE as STUDY
from whet.tuner.tuning import tune

FOUND = Step(technique="autocast")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(tables(tmp_path, steps=6)), encoding="utf-8")
    return path


class Search:
    """Stand for whet.tune: it notes what it is asked, and is stopped or writes a recipe."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.is_stopped = False

    def __call__(self, workload: TrainingWorkload, *, out: Path, **options: Any) -> SimpleNamespace:
        self.asked.append(options)
        out.mkdir(parents=True, exist_ok=True)
        (out / STUDY).touch()
        if self.is_stopped:
            raise KeyboardInterrupt
        Recipe(kind="training", steps=[FOUND]).write(out / "recipe.toml")
        return SimpleNamespace(sentence="found")


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    made = Search()
    monkeypatch.setattr(whet.trainer.tuned, "tune", made)
    return made


@NEEDS_BFLOAT16
def test_the_run_takes_what_the_search_found(file: Path, tmp_path: Path, search: Search) -> None:
    """The progress is shown while the search goes, and no longer."""
    said: list[str] = []
    listener = Listener()

    @contextlib.contextmanager
    def progress() -> Iterator[Listener]:
        said.append("search begins")
        yield listener
        said.append("search ends")

    train(file, tune="throughput", tune_budget_s=5.0, tune_progress=progress(), say=said.append)
    (asked,) = search.asked
    assert asked == {"objective": "throughput", "budget_s": 5.0, "resume": False, "listener": listener}
    assert said.index("search begins") < said.index("search ends") < said.index(f"recipe: {FOUND}")
    assert said.index(f"recipe: {FOUND}") < next(at for at, line in enumerate(said) if line.startswith("step "))


@NEEDS_BFLOAT16
def test_a_search_that_was_stopped_goes_on(file: Path, tmp_path: Path, search: Search) -> None:
    search.is_stopped = True
    with pytest.raises(KeyboardInterrupt):
        train(file, tune="memory", say=lambda line: None)
    search.is_stopped = False
    with pytest.raises(OptionError, match="holds a search already; go on with it by --resume"):
        train(file, tune="memory", say=lambda line: None)
    train(file, tune="memory", resume=True, say=lambda line: None)
    assert [asked["resume"] for asked in search.asked] == [False, True]


@NEEDS_BFLOAT16
@pytest.mark.parametrize("objective", [None, "throughput"])
def test_a_run_goes_on_with_the_recipe_that_was_found(
    file: Path, tmp_path: Path, search: Search, objective: Any
) -> None:
    train(file, tune="throughput", say=lambda line: None)
    said: list[str] = []
    result = train(file, ["steps=8"], resume=True, tune=objective, say=said.append)
    assert len(search.asked) == 1 and result.step == 8
    assert f"recipe: {FOUND}" in said


def test_what_cannot_be_tuned_is_refused_before_the_search(file: Path, tmp_path: Path, search: Search) -> None:
    refused = partial(train, file, tune="throughput", say=lambda line: None)
    with pytest.raises(OptionError, match="holds no search and no run to go on with; leave out --resume"):
        refused(resume=True)
    with pytest.raises(OptionError, match=r"leave batch\.micro_batch_size out"):
        refused(["batch.micro_batch_size=4"])
    with pytest.raises(OptionError, match=r"names the recipe .*other.*; leave it out, or leave out --tune"):
        refused([f"recipe={tmp_path / 'other'}"])
    train(file, say=lambda line: None)
    with pytest.raises(OptionError, match="holds a run already; go on with it by --resume"):
        refused()
    with pytest.raises(OptionError, match="a run goes on with the recipe that it began with; leave out --tune"):
        refused(resume=True)
    assert search.asked == []


@pytest.mark.slow
def test_a_real_search_ends_in_a_recipe_that_trains(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whet.trainer.tuned, "tune", partial(tune, on_busy="go-on"))
    result = train(file, tune="throughput", tune_budget_s=60.0, say=lambda line: None)
    assert is_tuned(tmp_path / "run" / TUNED)
    assert result.model is not None and result.step == 6
