"""`whet.measure_fixes` and `whet audit --measure`: the same verdicts and files. Processes are stood in for."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from whet.cli import main
from whet.errors import OptionError, TargetError
from whet.measure.isolate import Function, Outcome
from whet.scripts.audit_measure import plan
from whet.scripts.audit_measure.measure_fixes import measure_fixes

SOURCE = """\
import torch
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step of the script takes 8 seconds as it is, and 2 seconds once it is fixed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)
    num_runs = 0

    def run(function: Function, arguments: dict[str, Any], directory: Path, **others: Any) -> Outcome:
        nonlocal num_runs
        num_runs += 1
        is_fixed = Path(arguments["script"]).read_text() != SOURCE
        seconds = (2.0 if is_fixed else 8.0) + 0.001 * (num_runs % 3)
        phases = [{"name": "forward", "ms": 500 * seconds}, {"name": "data wait", "ms": None}]
        report = {"phases": phases, "step_ms": 1000 * seconds}
        value = {"seconds": [seconds] * 6, "losses": [1.0] * 6, "report": report}
        return Outcome({**value, "peak_bytes": 1, "cuda_peak_bytes": None}, None, 1.0, 0)

    monkeypatch.setattr(plan, "run_isolated", run)
    return tmp_path


def test_the_command_and_the_function_do_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    outcome = measure_fixes("train.py", ["--lr", "1"], fix=True, on_busy="go-on", report=lines.append)
    impact = outcome.report.impact
    assert impact is not None
    assert impact.total is not None
    assert impact.total.ratio == pytest.approx(4.0, rel=0.01)
    assert impact.total.verdict == "pass"
    assert [(phase.name, round(phase.before_ms, -2), round(phase.after_ms or 0, -2)) for phase in impact.phases] == [
        ("forward", 4000, 1000),
        ("step", 8000, 2000),
    ]
    by_function = (here / "train.py").read_text()
    assert by_function != SOURCE
    assert lines[0] == "running the script as it is"
    (here / "train.py").write_text(SOURCE)
    with pytest.raises(SystemExit) as left:
        main(["audit", "train.py", "--measure", "--fix", "--on-busy", "go-on", "--", "--lr", "1"])
    assert left.value.code == 1
    shown = capsys.readouterr()
    assert (here / "train.py").read_text() == by_function
    assert [trial.is_kept for trial in impact.trials].count(True) == 1
    for trial in impact.trials:
        kept = "yes" if trial.is_kept else f"no: {trial.status}"
        assert re.search(rf"^{trial.code} {trial.name} .* {kept}$", shown.out, re.MULTILINE)
    assert "All kept fixes: 4.00x faster a step" in shown.out
    assert shown.err.startswith("running the script as it is\n")


def test_findings_carry_what_was_measured(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = measure_fixes("train.py", on_busy="go-on")
    with pytest.raises(SystemExit):
        main(["audit", "train.py", "--measure", "--on-busy", "go-on", "--json"])
    shown = json.loads(capsys.readouterr().out)
    measured = {f.code: f.measured for f in outcome.report.findings if f.measured is not None}
    assert measured
    for finding in shown["findings"]:
        known = measured.get(finding["code"])
        assert (finding["measured"] is None) == (known is None)
        if known is not None:
            assert finding["measured"]["ratio"] == pytest.approx(known.ratio, rel=0.01)
            assert finding["measured"]["verdict"] == known.verdict
            assert finding["measured"]["num_pairs"] == known.num_pairs > 0
    assert (here / "train.py").read_text() == SOURCE
    assert not outcome.changes


def test_changes_may_be_had_without_being_written(here: Path) -> None:
    outcome = measure_fixes("train.py", fix=True, write=False, on_busy="go-on")
    assert outcome.changes
    assert (here / "train.py").read_text() == SOURCE


def test_what_is_wrong_is_raised(here: Path) -> None:
    with pytest.raises(OptionError, match="--steps 3 are too few"):
        measure_fixes("train.py", num_steps=3)
    with pytest.raises(TargetError, match="no such file"):
        measure_fixes(here / "none.py")
    with pytest.raises(OptionError, match="--on-busy"):
        measure_fixes("train.py", on_busy="hope")
