"""What changed between two traces, and how both commands show what they found."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from whet.cli.profile_trace import run_trace, show_changes, show_trace
from whet.errors import OptionError, TraceError
from whet.profiling.trace.changes import Change, TraceChanges, compare_traces
from whet.profiling.trace.report import analyse_file

WIDTHS = (60, 80, 120)


def event(category: str, name: str, start_us: float, dur_us: float, **args: Any) -> dict[str, Any]:
    place = {"device": 0, "stream": 7} if category in ("kernel", "gpu_memcpy") else {}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": dur_us,
        "args": place | args,
    }  # fmt: skip


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}))
    return path


def steps(num_steps: int, kernels: dict[str, float], operators: dict[str, float]) -> list[dict[str, Any]]:
    """Steps of 1 ms, each with every kernel and operator once, one after another."""
    events = []
    for step in range(num_steps):
        start = 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", start, 1000))
        at = start
        for name, dur in operators.items():
            events.append(event("cpu_op", name, at, dur))
            at += dur
        at = start
        for i, (name, dur) in enumerate(kernels.items()):
            number = 100 * step + i + 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=number))
            events.append(event("kernel", name, at + 2, dur - 2, correlation=number))
            at += dur
    return events


BEFORE = steps(4, {"gemm": 350, "softmax": 100, "gone": 50, "same": 40, "tiny": 2.2}, {"aten::mm": 400, "aten::t": 20})
AFTER = steps(
    2,
    {"gemm": 200, "softmax": 130, "same": 41, "tiny": 2.4,
     "flash_attention_with_a_name_that_is_longer_than_any_table_has_room_for": 80},
    {"aten::mm": 400, "aten::sdpa": 90},
)  # fmt: skip


@pytest.fixture
def changes(tmp_path: Path) -> TraceChanges:
    paths = write(tmp_path / "before.json", BEFORE), write(tmp_path / "after.json", AFTER)
    return compare_traces(*map(analyse_file, paths))


def test_changes_by_hand(changes: TraceChanges) -> None:
    assert changes.per_step
    found = {entry.name: (entry.change, round(entry.difference_ns / 1000, 3)) for entry in changes.kernels}
    long = "flash_attention_with_a_name_that_is_longer_than_any_table_has_room_for"
    assert found == {
        "gemm": (Change.FASTER, -150), long: (Change.ADDED, 78), "gone": (Change.REMOVED, -48),
        "softmax": (Change.SLOWER, 30), "same": (Change.SAME, 1),
        "tiny": (Change.SAME, 0.2),  # twice as long, but next to nothing
    }  # fmt: skip
    differences = [abs(entry.difference_ns) for entry in changes.kernels]
    assert differences == sorted(differences, reverse=True)
    assert {entry.name: entry.change for entry in changes.operators} == {
        "aten::sdpa": Change.ADDED, "aten::t": Change.REMOVED, "aten::mm": Change.SAME,
    }  # fmt: skip
    gemm = next(entry for entry in changes.kernels if entry.name == "gemm")
    assert (gemm.what, gemm.before_calls, gemm.after_calls) == ("compute", 1, 1)


def test_figures_are_per_step(changes: TraceChanges) -> None:
    figures = {figure.name: (figure.before, figure.after) for figure in changes.figures}
    assert figures["step"] == (1e6, 1e6)
    assert figures["launches"] == (5, 5)
    assert figures["compute"] == (pytest.approx(532_200), pytest.approx(443_400))
    assert figures["GPU busy"] == (pytest.approx(0.5322), pytest.approx(0.4434))
    assert "communication" not in figures  # neither has any
    assert "about the same" in changes.sentence and "1.00 ms" in changes.sentence


def test_a_trace_against_itself_has_not_changed(tmp_path: Path) -> None:
    found = analyse_file(write(tmp_path / "t.json", BEFORE))
    changes = compare_traces(found, found)
    assert {entry.change for entry in (*changes.kernels, *changes.operators)} == {Change.SAME}
    assert changes.sentence.endswith("no kernel or operator changed.")
    text = shown(changes, 80)
    assert "none of 5 changed" in text


def test_without_steps_totals_are_compared(tmp_path: Path) -> None:
    before = analyse_file(write(tmp_path / "a.json", [event("cpu_op", "aten::mm", 0, 100)]))
    after = analyse_file(
        write(tmp_path / "b.json", [event("cpu_op", "aten::mm", 0, 100), event("cpu_op", "x", 100, 50)])
    )
    changes = compare_traces(before, after)
    assert not changes.per_step
    assert "50% longer" in changes.sentence
    long = analyse_file(write(tmp_path / "c.json", [event("cpu_op", "aten::mm", 0, 550)]))
    assert "5.5x as long" in compare_traces(before, long).sentence
    assert "82% shorter" in compare_traces(long, before).sentence


def shown(found: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    (show_changes if isinstance(found, TraceChanges) else show_trace)(console, found)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("width", WIDTHS)
def test_both_views_fit_the_terminal(changes: TraceChanges, width: int) -> None:
    for found in (changes, changes.before, changes.after):
        assert max(cell_len(line) for line in shown(found, width).splitlines()) <= width


def test_the_view_of_one_trace(changes: TraceChanges) -> None:
    text = shown(changes.before, 80)
    lines = text.splitlines()
    verdict = next(i for i, line in enumerate(lines) if line.startswith("GPU-bound"))
    assert verdict < 4  # at the top
    assert any(line.split() == ["gemm", "4", "1.39", "ms", "348", "µs", "65%"] for line in lines)
    assert any(line.startswith("GPU 0, NVIDIA H100") and line.split()[-2:] == ["53%", "47%"] for line in lines)
    assert any(line.split() == ["aten::mm", "4", "1.59", "ms", "1.60", "ms", "1.78", "ms"] for line in lines)
    assert "calls that launch kernels" in text and "slowest operators" in text and "waits for data" in text


def test_the_view_of_changes(changes: TraceChanges) -> None:
    lines = shown(changes, 100).splitlines()
    assert any(line.split() == ["gemm", "faster", "348", "µs", "198", "µs", "−150", "µs", "1"] for line in lines)
    assert any(line.split() == ["gone", "removed", "48.0", "µs", "—", "−48.0", "µs", "1→0"] for line in lines)


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "x\x1b[2J\n[bold]y[/bold]"
    events = [event("cpu_op", evil, 0, 5), event("kernel", evil, 0, 50), event("cuda_runtime", evil, 0, 5)]
    text = shown(analyse_file(write(tmp_path / "t.json", events)), 80)
    assert "\x1b" not in text
    assert "[bold]y[/bold]" in text


def test_json_is_one_object_on_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "before.json", BEFORE), write(tmp_path / "after.json", AFTER)
    run_trace([one], as_json=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["format"] == 1
    assert found["verdict"]["bound"] == "GPU-bound"
    assert found["window_ns"] == 4_000_000
    assert len(found["kernels"]) == 5 and len(found["steps"]) == 4
    run_trace([one, two], as_json=True)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["kernels"][0]["name"] == "gemm" and found["kernels"][0]["change"] == "faster"


def test_the_command_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write(tmp_path / "before.json", BEFORE), write(tmp_path / "after.json", AFTER)
    run_trace([one], as_json=False)
    assert "GPU-bound" in capsys.readouterr().out
    run_trace([one, two], as_json=False)
    assert "faster" in capsys.readouterr().out


def test_wrong_use(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", BEFORE)
    for paths in ([], [path] * 3):
        with pytest.raises(OptionError, match="name one, or two"):
            run_trace(paths, as_json=False)
    with pytest.raises(TraceError):
        run_trace([path, tmp_path / "none.json"], as_json=False)
