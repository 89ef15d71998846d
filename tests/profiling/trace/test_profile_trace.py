"""`whet.profile_trace` and `whet profile --trace`: the same figures."""

import json
from pathlib import Path

import pytest

from whet.cli import main
from whet.errors import TraceError
from whet.profiling.trace.profile_trace import profile_trace


def trace(path: Path, time_us: float) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": time_us}
    path.write_text(json.dumps({"traceEvents": [event, {**event, "ts": 2 * time_us}]}))
    return path


def shown(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> object:
    with pytest.raises(SystemExit) as left:
        main(["profile", "--trace", *map(str, paths), "--json"])
    assert left.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_one_trace_and_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = trace(tmp_path / "a.json", 100), trace(tmp_path / "b.json", 300)
    report = profile_trace(before)
    assert report.operators[0].total_ns == 200_000
    assert json.loads(json.dumps(report.summary())) == shown([before], capsys)
    changes = profile_trace(str(before), str(after))
    assert changes.operators[0].difference_ns == 400_000
    assert json.loads(json.dumps(changes.summary())) == shown([before, after], capsys)


def test_a_damaged_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(TraceError):
        profile_trace(tmp_path / "a.json")
