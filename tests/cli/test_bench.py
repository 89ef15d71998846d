import json
from pathlib import Path

import pytest

from whet.cli import main
from whet.comparison.bench.report import BenchmarkVerdict, Gate, Point, Sweep


def _exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments])
    code = left.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits-cnn", "--batch", "1,two"], "--batch takes whole numbers"),
        (["digits-cnn", "--batch", "0"], "--batch takes sizes of 1 or more"),
        (["digits-cnn", "--compare", "a.json", "--against", "main"], "give one of them"),
        (["digits-cnn", "--compare", "none.json"], "there is no baseline none.json"),
        (["digits-cnn", "--against", "main", "--save", "a.json"], "belong to a sweep"),
        (["digits-cnn", "--against", "main"], "not in a git work tree"),
        (["digits-cnn", "--against", "main", "--tolerance", "0"], "tolerance"),
        (["digits-cnn", "--save", "nowhere/a.json"], "there is no directory"),
        (["digits-cnn", "--csv", "."], "is a directory"),
        (["digits-cnn", "--budget", "soon"], "soon"),
        (["digits-cnn", "--processes", "0"], "--processes 0: each point is measured in at least one process"),
        (["digits-cnn", "--junit", "v.xml"], "--junit writes verdicts, and there are none without --compare or"),
        (["digits-cnn", "--github"], "--github writes verdicts, and there are none without --compare or --against"),
        (["digits-cnn", "--batch", "1,2", "--plot", "x.bmp"], "--plot writes .svg, .png, .pdf; x.bmp has none of"),
        (["digits-cnn", "--batch", "2", "--plot", "x.svg"], "--plot needs a size that varies"),
        (["digits-cnn", "--save", "/proc/a.json"], "/proc/a.json cannot be written"),
        (["digits-cnn", "--compare", "none.json", "--tolerance", "5"], "--tolerance must lie between 0 and 1"),
    ],
)
def test_wrong_use_is_one_clear_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _exit_code(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        Point(target="t", sizes={"batch": 1}, latency_ms=1.5, p50_ms=1.5, p90_ms=2.0, throughput_per_s=666.7),
        Point(target="t", sizes={"batch": 2}, status="failed", reason="does not fit into memory"),
    ]

    def measured(targets: list[str], **options: object) -> Sweep:
        assert (targets, options["batch"], options["seq"]) == (["docs-gpt"], [1, 2], [])
        return Sweep(fingerprint="0" * 12, machine={}, points=points)

    monkeypatch.setattr("whet.cli.bench_run.bench", measured)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert _exit_code(["docs-gpt", "--batch", "1,2", "--csv", "s.csv", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert [p["status"] for p in found["points"]] == ["done", "failed"]
    assert "does not fit into memory" in captured.err
    assert max(map(len, captured.err.splitlines())) <= 80
    assert (tmp_path / "s.csv").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("outcome", "reason", "code"), [("pass", "", 0), ("fail", "", 1), ("inconclusive", "", 3), ("inconclusive", "x", 2)]
)
def test_the_exit_code_is_the_verdict(
    outcome: str,
    reason: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = BenchmarkVerdict.model_validate(
        {"label": "t", "outcome": outcome, "slowdown": 1.01, "ci95": (0.99, 1.03), "num_pairs": 5, "reason": reason}
    )
    gate = Gate(outcome=verdict.outcome, compared="a against b", tolerance=0.02, fingerprint="0", verdicts=[verdict])
    monkeypatch.setattr("whet.cli.bench_run.compare_with", lambda *args, **kwargs: gate)
    junit = tmp_path / "verdicts.xml"
    assert _exit_code(["docs-gpt", "--against", "main", "--junit", str(junit), "--github"]) == code
    captured = capsys.readouterr()
    assert captured.out.startswith(("::notice", "::error", "::warning"))
    assert outcome.upper() in captured.err
    assert junit.read_text().startswith("<?xml")
