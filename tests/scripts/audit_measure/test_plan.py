"""Fixes are tried on top of one another, and kept where they pay at the same loss. Processes are stood in for."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet.errors import TargetError
from whet.measure.isolate import Failure, FailureKind, Function, Outcome
from whet.scripts.audit_measure import plan
from whet.scripts.audit_measure.plan import measure_impact, script_at
from whet_audit.collect import SourceFile
from whet_audit.finding import Confidence, Finding, Fix, Gain, HotPath, Priority, ReplaceExpression, Span

SOURCE = "COST = 8\nLOSS = 2\nUSELESS = 0\nBROKEN = 0\n"


def finding(code: str, line: int, value: str, gain: float, path: str) -> Finding:
    place = {1: 7, 2: 7, 3: 10, 4: 9}[line]
    edit = ReplaceExpression(Span(line, place, line, place + 1), value)
    estimate = Gain(0.0, gain, "for the test")
    fix = Fix(f"set it to {value}", True, (edit,))
    return Finding(code, code.lower(), path, edit.expression, "", Priority.LOW, Confidence.HIGH, estimate, fix=fix)


def look(files: Sequence[SourceFile]) -> list[Finding]:
    """What is left to be found: a fixed place is found no more."""
    (file,) = files
    found = []
    for code, line, text, value, gain in (
        ("AAA101", 1, "COST = 8", "2", 0.2),
        ("BBB101", 2, "LOSS = 2", "3", 0.9),
        ("CCC101", 3, "USELESS = 0", "1", 0.5),
        ("DDD101", 4, "BROKEN = 0", "1", 0.7),
    ):
        if text in file.text:
            found.append(finding(code, line, value, gain, file.path))
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """A process of the script takes COST seconds a step, 1 less with another LOSS; what was run is noted."""
    noted: list[dict[str, int]] = []

    def run(function: Function, arguments: dict[str, Any], directory: Path, **others: Any) -> Outcome:
        values = {k: int(v) for k, v in re.findall(r"(\w+) = (\d+)", Path(arguments["script"]).read_text())}
        noted.append(values)
        if values["BROKEN"]:
            return Outcome(None, Failure(FailureKind.ERROR, "ValueError: broken"), 1.0, 0)
        seconds = values["COST"] - (values["LOSS"] == 3) + 0.001 * (len(noted) % 3)
        report = {"phases": [], "step_ms": None}
        value = {"seconds": [seconds] * 6, "losses": [values["LOSS"]] * 6, "report": report}
        return Outcome({**value, "peak_bytes": 1, "cuda_peak_bytes": None}, None, 1.0, 0)

    monkeypatch.setattr(plan, "run_isolated", run)
    return noted


def test_what_pays_at_the_same_loss_is_kept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, int]]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    place = script_at(script, [], tmp_path.parent / "work", num_steps=6, limit_s=10)
    told: list[str] = []
    impact, files = measure_impact(place, [SourceFile("train.py", SOURCE)], look, budget_s=100, report=told.append)
    assert {trial.code: trial.status for trial in impact.trials} == {
        "BBB101": "another loss",
        "DDD101": "failed",
        "CCC101": "no gain",
        "AAA101": "kept",
    }
    assert [trial.code for trial in impact.trials] == ["BBB101", "DDD101", "CCC101", "AAA101"]  # by their promise
    assert files[0].text == SOURCE.replace("COST = 8", "COST = 2")
    assert script.read_text() == SOURCE
    assert impact.total is not None
    assert impact.total.ratio == pytest.approx(4.0, rel=0.01)
    assert impact.total.num_pairs == 6
    assert impact.total.verdict == "pass"
    assert impact.before_ms == pytest.approx(8000, rel=0.01)
    assert impact.command == f"whet audit {script} --measure --"
    assert started[0] == {"COST": 8, "LOSS": 2, "USELESS": 0, "BROKEN": 0}


def test_without_time_nothing_is_tried_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, int]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)
    place = script_at(tmp_path / "train.py", [], tmp_path.parent / "work", num_steps=6, limit_s=10)
    impact, _ = measure_impact(place, [SourceFile("train.py", SOURCE)], look, budget_s=0, report=lambda line: None)
    assert {trial.status for trial in impact.trials} == {"not tried"}
    assert impact.total is None
    assert len(started) == 1


def test_what_lies_in_inference_is_not_tried_and_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[dict[str, int]]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)
    place = script_at(tmp_path / "train.py", [], tmp_path.parent / "work", num_steps=6, limit_s=10)

    def look_in_evaluate(files: Sequence[SourceFile]) -> list[Finding]:
        return [replace(found, hot=HotPath("inference loop", "evaluate")) for found in look(files)]

    impact, _ = measure_impact(
        place, [SourceFile("train.py", SOURCE)], look_in_evaluate, budget_s=100, report=lambda line: None
    )
    assert len(started) == 1
    assert {(trial.status, trial.why.partition(",")[0]) for trial in impact.trials} == {
        ("not tried", "it lies in inference")
    }


def test_only_a_script_can_be_run(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"name one \.py file"):
        script_at(tmp_path, [], tmp_path, num_steps=6, limit_s=10)
