"""The command around whet.tune: its exit code, and what Ctrl-C leaves."""

import shlex
from pathlib import Path

import pytest
from fake_results import no_gain
from fake_search import facts
from rich.console import Console

from whet.cli import main
from whet.cli.exit_codes import INTERRUPTED
from whet.cli.tune import _directory
from whet.cli.tuning_progress import TuningProgress
from whet.tuner.budget_plan import BudgetPlan, Costs
from whet.tuner.records import TrialRecord
from whet.tuner.result import Diagnosed, Result, UntriedTechnique
from whet.tuner.untried import TIME_UP


def exit_code(*arguments: str) -> int:
    try:
        main(["tune", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(("verdict", "code"), [("no-gain", 0), ("failed", 1), ("inconclusive", 3)])
def test_a_search_in_which_all_failed_is_no_success(monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    result = no_gain().model_copy(update={"verdict": verdict})
    monkeypatch.setattr("whet.cli.tune_targets.tune", lambda *_, **__: result)
    assert exit_code("digits-cnn", "docs-gpt") == code


@pytest.mark.parametrize(("wait", "seconds"), [("5m", "300s"), ("0", "0s")])
def test_ctrl_c_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, wait: str, seconds: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some where").mkdir()
    Path("some where/config.json").write_text("{}")
    Path("some where/model.safetensors").write_bytes(b"")

    def interrupted(*_: object, listener: TuningProgress, **__: object) -> None:
        listener.tried(TrialRecord(number=0, steps=[], status="done"))
        raise KeyboardInterrupt

    monkeypatch.setattr("whet.cli.tune_targets.tune", interrupted)
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--objective", "size", "--max-memory", "1GB", "--exclude", "bf16,fp16", "--out", "a directory"]
    options += ["--on-busy", "go-on", "--busy-wait", wait]
    assert exit_code("hf:some where?batch=8&seq=256", *options) == INTERRUPTED
    again = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("whet tune"))
    words = shlex.split(again)
    assert words[2] == "hf:some where?batch=8&seq=256"
    assert {"--resume", "size", "1000000000", "bf16,fp16", "a directory", "--on-busy", "go-on", seconds} <= set(words)


def test_results_go_to_a_new_directory_of_the_targets_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some" / "model")
    seen = {
        "digits-cnn": "digits-cnn",
        "code/bench.py:build": "bench.py-build",
        "hf:.": "model",
        "hf:..": "some",
        "hf:/a/b.c/?batch=8": "b.c-batch-8",
        "/x/.hidden": "hidden",
        "..": "model",
        "y" * 300: "y" * 100,
    }
    for target, name in seen.items():
        assert _directory(target, None, alone=True, resume=False) == Path("whet-out") / name
    Path("whet-out/model").mkdir(parents=True)
    assert _directory("hf:.", None, alone=True, resume=False) == Path("whet-out/model-2")


@pytest.mark.parametrize("target", ["hf:runs[/1]", "bench[v2].py:f", "[/]"])
def test_brackets_in_a_name_are_no_markup(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(target) == 2
    said = capsys.readouterr()
    assert not said.out, "what is refused has no first line"
    assert "Traceback" not in said.err
    with TuningProgress(Console(), target, 1.0) as live:
        live.begins()
        live.begins()
    assert capsys.readouterr().out.count(f"{target}: looking at") == 1


@pytest.mark.parametrize("name", ["error [/100]", "loss [nats]"])
def test_brackets_in_the_name_of_a_quality_are_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with TuningProgress(Console(), "x", 1.0) as live:
        diagnosis = Diagnosed(sentence="overhead [50 %]", bound="overhead", shares={}, share_of_limit=0.1)
        live.looked(facts(diagnosis=diagnosis, score=0.5, quality_name=name))
    said = capsys.readouterr().out
    assert f"{name} of the original: 0.5" in said
    assert "overhead [50 %]" in said


def test_the_plan_is_one_plain_line_and_the_end_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = Costs(trial_s=12.0, original_s=4.0, variant_s=3.0)
    outlook = BudgetPlan(
        budget_s=20.0, elapsed_s=9.0, spent_s=9.0, search_s=11.0, stop_s=16.0, has_verdict=False, costs=costs,
        has_trials=False,
    )  # fmt: skip
    untried = [UntriedTechnique(technique=name, bound=2.0, reason=TIME_UP) for name in ("bf16", "fp16")]
    untried.append(UntriedTechnique(technique="threads", bound=1.0, reason="it could not have won"))

    def short(*_: object, listener: TuningProgress, **__: object) -> Result:
        listener.planned(outlook)
        return no_gain().model_copy(
            update={"verdict": "inconclusive", "needed_s": 70.0, "untried": untried, "out": "some where"}
        )

    monkeypatch.setattr("whet.cli.tune_targets.tune", short)
    monkeypatch.setenv("COLUMNS", "200")
    assert exit_code("docs-gpt", "--budget", "20s") == 3
    said = capsys.readouterr().out
    assert (
        "Looking at the model took 9 s of the 20 s. What fits: 1 trial of about 12 s; no finals, so nothing can "
        "be proved. A verdict takes a budget of about 70 s."
    ) in " ".join(said.split())
    last = said.strip().splitlines()[-1]
    assert last.startswith("2 techniques are untried, as the time was up. To go on: whet tune docs-gpt ")
    words = shlex.split(last.partition("To go on: ")[2])
    assert {"--resume", "70s", "some where"} <= set(words)


def test_a_search_that_reached_everything_does_not_say_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("whet.cli.tune_targets.tune", lambda *_, **__: no_gain())
    assert exit_code("digits-cnn") == 0
    assert "To go on" not in capsys.readouterr().out


def test_one_trial_is_one_trial(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, listener: TuningProgress, **__: object) -> None:
        listener.tried(TrialRecord(number=0, steps=[], status="done"))
        raise KeyboardInterrupt

    monkeypatch.setattr("whet.cli.tune_targets.tune", interrupted)
    assert exit_code("digits-cnn") == INTERRUPTED
    assert "stopped; 1 trial is kept. To go on:" in capsys.readouterr().out
