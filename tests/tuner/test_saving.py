"""What is said to be saved is saved: an artefact that loads, or the reason why there is none, said everywhere alike."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_results import gain, no_gain
from fake_search import facts
from rich.console import Console
from torch import Tensor

from whet.cli.tables import show_result
from whet.core.artefact import load
from whet.core.recipe import Step
from whet.core.workload import Workload, examine
from whet.errors import ArtefactError
from whet.measure.isolate import Failure, FailureKind, Function, Outcome
from whet.tuner.goal import Goal
from whet.tuner.model_points import gain_sentence
from whet.tuner.reloading import ANSWERS, check_answers, write_answers
from whet.tuner.report import render
from whet.tuner.result import MODEL, Result
from whet.tuner.saving import save_model, saved_original
from whet.tuner.search import reloaded
from whet.tuner.trial_context import TrialContext

FACTS = facts(sys_path=["/places"])


class Runner:
    """Saves an empty artefact; fails in `fails`, with a message."""

    def __init__(self, fails: str = "", libraries: tuple[str, ...] = ()) -> None:
        self.fails = fails
        self.libraries = libraries
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, function: Function, request: Any, directory: Path, time_limit_s: float) -> Outcome:
        name = function.__name__
        self.calls.append((name, request))
        if name == self.fails:
            return Outcome(None, Failure(FailureKind.USER, f"{name} met a wall", "TargetError"), 0.1, 0)
        if name == "save_original":
            request.directory.mkdir(parents=True)
            (request.directory / "weights").write_text("1")
        return Outcome({"libraries": list(self.libraries)}, None, 0.1, 0)


def shown(result: Result) -> tuple[str, str, dict[str, Any]]:
    """What the terminal, the report and the JSON say, each on one line."""
    terminal = io.StringIO()
    show_result(Console(file=terminal, width=1000), result)
    return " ".join(terminal.getvalue().split()), " ".join(render(result, "").split()), result.summary()


@pytest.mark.parametrize("fails", ["save_original", "reload"])
def test_an_original_that_cannot_be_saved_or_loaded_is_no_model(tmp_path: Path, fails: str) -> None:
    """A model of an earlier search goes as well: nothing that was not checked lies there."""
    result, out = no_gain(), tmp_path / "out"
    result.out = str(out)
    (out / MODEL).mkdir(parents=True)
    save_model(TrialContext("x", FACTS, tmp_path, Runner(fails)), result, out)
    assert not (out / MODEL).exists()
    assert result.unsaved.startswith("No model/ was written, since the original could not be saved: ")
    assert f"{fails} met a wall" in result.unsaved
    assert not result.has_model
    terminal, page, summary = shown(result)
    assert f"{fails} met a wall" in terminal
    assert f"{fails} met a wall" in page
    assert "whet.load(" not in page
    assert (summary["model"], summary["unsaved"]) == (None, result.unsaved)
    with pytest.raises(ArtefactError, match=f"{fails} met a wall"):
        result.load()


def test_what_was_saved_says_which_libraries_it_is_loaded_with(tmp_path: Path) -> None:
    result, out = no_gain(), tmp_path / "out"
    out.mkdir()
    result.out = str(out)
    runner = Runner(libraries=("/somewhere/ops.so",))
    save_model(TrialContext("x", FACTS, tmp_path, runner), result, out)
    assert (out / MODEL / "weights").is_file()
    assert (result.unsaved, result.libraries) == ("", ["/somewhere/ops.so"])
    ((_, given),) = [call for call in runner.calls if call[0] == "reload"]
    assert (given.libraries, given.sys_path) == (("/somewhere/ops.so",), ("/places",))
    terminal, page, summary = shown(result)
    assert "libraries=['/somewhere/ops.so']" in terminal
    assert "/somewhere/ops.so" in page
    assert (summary["model"], summary["libraries"]) == (str(out / MODEL), ["/somewhere/ops.so"])


def test_the_original_is_saved_once(tmp_path: Path) -> None:
    runner = Runner("reload")
    context = TrialContext("x", FACTS, tmp_path, runner)
    assert saved_original(context) == saved_original(context)
    assert [name for name, _ in runner.calls] == ["save_original", "reload"]


def test_a_winner_that_works_in_process_says_how_it_is_used(tmp_path: Path) -> None:
    result, out = gain(), tmp_path / "out"
    result.out = str(out)
    steps = (Step(technique="torch_compile"),)
    result.best.steps, result.best.number = steps, 0
    result.trials[0] = result.trials[0].model_copy(update={"steps": steps})
    save_model(TrialContext("x", FACTS, tmp_path, Runner("everything")), result, out)
    assert not (out / MODEL).exists()
    sentence = gain_sentence(Goal(), result.baseline, result.best, None, result.quality_name)
    for text in (*shown(result)[:2], sentence, result.unsaved):
        assert "whet.apply(RECIPE, MODEL, INPUTS)" in text
        assert "whet apply RECIPE TARGET" in text
    out.mkdir()
    (out / "result.json").write_text(json.dumps(result.model_dump(mode="json")))
    with pytest.raises(ArtefactError, match=r"model does not exist\. torch_compile cannot be saved: .*whet\.apply\("):
        load(out / MODEL)


def test_a_trial_whose_artefact_does_not_load_afresh_has_failed(tmp_path: Path) -> None:
    record = gain().trials[0].model_copy(update={"libraries": ("/somewhere/ops.so",)})
    assert reloaded(TrialContext("x", FACTS, tmp_path, Runner()), record) == record
    failed = reloaded(TrialContext("x", FACTS, tmp_path, Runner("reload")), record)
    assert (failed.status, failed.reason) == ("failed", "a fresh process cannot use it: reload met a wall")


def test_answers_of_another_process_are_held_against_the_first_ones(tmp_path: Path) -> None:
    examined = examine(Workload(model=torch.nn.Linear(4, 4), inputs=[torch.randn(3, 4)]))
    (batch,) = examined.flat_inputs

    def run(x: Tensor, scale: float = 1.0) -> tuple[Tensor, ...]:
        return (scale * examined.workload.model(x), x.argmax(-1))

    write_answers(run, batch, tmp_path / ANSWERS)
    check_answers(lambda x: run(x, 1.0 + 1e-5), batch, tmp_path / ANSWERS)
    for wrong in (lambda x: run(x, 1.5), lambda x: run(x, float("nan"))):
        with pytest.raises(ArtefactError, match="answers differently"):
            check_answers(wrong, batch, tmp_path / ANSWERS)
    with pytest.raises(ArtefactError, match="other shapes or dtypes"):
        check_answers(lambda x: run(x)[:1], batch, tmp_path / ANSWERS)
