"""What the command line of `whet audit --measure` refuses, and what it shows."""

from pathlib import Path

import pytest

from whet.cli import main
from whet.cli.audit_table import table
from whet_audit.finding import Measured
from whet_audit.report import FixTrial, Impact, Phase


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


def _impact(*, is_kept: bool) -> Impact:
    total = Measured(4.0, 3.9, 4.1, "pass", "same loss", 2**20, 2**20, num_pairs=6)
    first = "kept" if is_kept else "no gain"
    return Impact(
        command="whet audit train.py --measure --",
        trials=(
            FixTrial("CMP105", "loop-over-loss-terms", 1, ("one pass",), False, first, total),
            FixTrial("SYN101", "item-in-loop", 2, ("sum",), False, "failed", None, "ValueError: no"),
        ),
        before_ms=8.0,
        total=total if is_kept else None,
        phases=(Phase("forward", 4.0, 1.0), Phase("step", 8.0, 2.0)),
        num_steps=12,
        unfixed=("DAT104",),
    )


def test_the_table_says_what_was_kept_what_failed_and_what_is_left() -> None:
    text = table(_impact(is_kept=True))
    assert max(map(len, text.splitlines())) <= 80
    assert "All kept fixes: 4.00x faster a step (3.90 to 4.10), 6 pairs of processes." in text
    assert "Same loss." in text
    assert "no: failed" in text
    assert "ValueError: no" in text
    assert "DAT104" in text


def test_where_nothing_pays_it_says_so() -> None:
    text = table(_impact(is_kept=False))
    assert "No fix paid on this machine: a step takes 8 ms, as before." in text
