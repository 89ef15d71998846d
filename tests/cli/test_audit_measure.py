"""What the command line of `whet audit --measure` refuses, and what it shows."""

from dataclasses import replace
from pathlib import Path

import pytest

from whet.auditor.collect import SourceFile
from whet.cli import main
from whet.cli.audit_measure import MeasuredAudit, table
from whet.comparison.claim import claim_of
from whet.comparison.run import Run
from whet.fix_trials import Impact, Stage
from whet.measure.evidence import Agreement


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{0}", "{0}", "--measure"], "--measure runs one training script"),
        (["{0}", "--", "--lr", "1"], "give --measure as well"),
        (["{0}", "--measure", "--steps", "3"], "--steps 3 are too few"),
        (["{1}", "--measure"], "name one .py file"),
        (["{0}", "--measure", "--budget", "soon"], "soon"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    with pytest.raises(SystemExit) as ended:
        main(["audit", *(argument.format(script, tmp_path) for argument in arguments)])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def _run(step_ms: float) -> Run:
    phases = [{"name": "forward", "ms": step_ms / 2}, {"name": "backward", "ms": None}]
    report = {"phases": phases, "step_ms": step_ms}
    return Run(seconds=step_ms / 1e3, peak_bytes=2**20, details={"report": report})


def _audit(*, is_kept: bool) -> MeasuredAudit:
    claim = replace(
        claim_of([8.0] * 6, [2.0, 2.1, 1.9, 2.0, 2.0, 2.0]),
        agreement=Agreement(is_same=True, distance=0.0, words="same loss"),
        pairs=((_run(8.0), _run(2.0)),),
    )
    stages = (
        Stage("CMP105", "loop-over-loss-terms", 1, ("one pass",), False, "kept" if is_kept else "no gain", claim),
        Stage("SYN101", "item-in-loop", 2, ("sum",), False, "failed", None, "ValueError: no"),
    )
    file = SourceFile("train.py", "")
    impact = Impact(_run(8.0), stages, claim if is_kept else None, (file,), 12, 1.0, ("DAT104",))
    return MeasuredAudit.of((file,), impact, "whet audit train.py --measure")


def test_the_table_says_what_was_kept_what_failed_and_what_is_left() -> None:
    text = table(_audit(is_kept=True))
    assert max(map(len, text.splitlines())) <= 80
    assert "All kept fixes: 4.00x faster a step" in text
    assert "Same loss." in text
    assert "no: failed" in text
    assert "ValueError: no" in text
    assert "DAT104" in text


def test_where_nothing_pays_it_says_so() -> None:
    text = table(_audit(is_kept=False))
    assert "No fix paid on this machine: a step takes 8 ms, as before." in text
