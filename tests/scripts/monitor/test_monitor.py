"""whet.Monitor in a loop: what it counts, and how it begins and ends."""

import io
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whet
from whet.errors import MissingExtra, OptionError, OutputError
from whet.scripts.monitor import Monitor

QUIET = {"show": False, "interval_s": 0.05}


def test_steps_samples_tokens_and_the_wait(tmp_path: Path) -> None:
    def slow() -> "object":
        for i in range(6):
            time.sleep(0.03)
            yield i

    with Monitor("loop", watch=False, out=tmp_path / "new" / "place", **QUIET) as monitor:
        for _ in monitor.batches(slow()):
            time.sleep(0.01)
            monitor.step(num_samples=4, num_tokens=40)
    summary = monitor.summary()
    assert (summary.name, summary.num_steps, summary.num_samples, summary.num_tokens) == ("loop", 6, 24, 240)
    assert summary.data_wait == pytest.approx(0.75, abs=0.12)
    assert summary.latency is not None
    assert 40 <= summary.latency.p50_ms < 80
    assert summary.peak_rss_bytes is not None
    assert summary.unavailable["CUDA memory, fragmentation"]
    written = json.loads((tmp_path / "new" / "place" / "summary.json").read_text(encoding="utf-8"))
    assert written["num_steps"] == 6
    assert "<!doctype html>" in (tmp_path / "new" / "place" / "summary.html").read_text(encoding="utf-8")


def test_a_wait_told_by_hand() -> None:
    with Monitor(watch=False, **QUIET) as monitor:
        time.sleep(0.2)  # before the first wait: in no step
        for _ in range(3):
            with monitor.data_wait():
                time.sleep(0.01)
            monitor.step()
    summary = monitor.summary()
    assert summary.num_steps == 3
    assert summary.data_wait == pytest.approx(1, abs=0.2)
    assert summary.latency is not None
    assert summary.latency.longest_ms < 150
    assert (summary.num_samples, summary.samples_per_s) == (None, None)
    assert {"samples", "tokens"} <= set(summary.unavailable)
    assert "data wait" not in summary.unavailable


def train(epochs: int, *, with_validation: bool = False) -> int:
    """A plain loop. Returns its steps."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,))), batch_size=8)
    steps = 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
        if with_validation:
            with torch.no_grad():
                for x, _ in loader:
                    model(x)
    return steps


def test_one_line_is_enough() -> None:
    with Monitor(**QUIET) as monitor:
        steps = train(4, with_validation=True)
    summary = monitor.summary()
    assert steps - 1 <= summary.num_steps <= steps  # the first is let by, as torch is patched after it
    assert summary.num_samples == 8 * summary.num_steps
    assert {"data_wait", "forward", "backward", "optimiser"} <= set(summary.phases)
    assert sum(summary.phases.values()) == pytest.approx(1)


def test_torch_is_as_it_was_after() -> None:
    before = {name: vars(owner).get(name) for owner, name in _patched()}
    with Monitor(**QUIET):
        train(2)
    assert {name: vars(owner).get(name) for owner, name in _patched()} == before


def _patched() -> list[tuple[type, str]]:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    return [(nn.Module, "__call__"), (torch.Tensor, "item"), (DataLoader, "__iter__"), (iterator, "__next__")]


def test_a_loop_that_says_its_steps_still_has_its_phases() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(8, 4) for _ in range(10)]
    with Monitor(**QUIET) as monitor:
        for x in monitor.batches(batches):
            model(x).sum().backward()
            optimizer.step()
            monitor.step(num_samples=len(x))
    summary = monitor.summary()
    assert (summary.num_steps, summary.num_samples) == (10, 80)
    assert {"data_wait", "forward", "backward", "optimiser", "rest"} <= set(summary.phases)


def test_what_went_wrong_is_kept() -> None:
    with pytest.raises(RuntimeError, match="boom"), Monitor(watch=False, **QUIET) as monitor:
        raise RuntimeError("boom")
    assert monitor.summary().message == "RuntimeError: boom"
    assert monitor.summary().is_partial


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [("raise ValueError('diverged')", 1, "ValueError: diverged"), ("pass", 0, ""), ("raise SystemExit(0)", 0, "")],
)
def test_the_end_of_a_program_of_one_line(end: str, code: int, message: str, tmp_path: Path) -> None:
    program = f"import whet\nwhet.Monitor(watch=False, out='kept').step()\n{end}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    summary = json.loads((tmp_path / "kept" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["num_steps"], summary["message"], summary["is_partial"]) == (1, message, bool(code))
    assert ("diverged. The figures are partial" in done.stderr) is bool(code)


def test_closing_twice_and_from_a_fork_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(watch=False, **QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        monitor.close()
    assert monitor.run.ending is None
    monitor.close()
    rows = monitor.run.num_rows
    monitor.close("late")
    assert monitor.run.num_rows == rows
    assert monitor.summary().message == ""


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    Monitor(watch=False, port=0, **QUIET).close()
    assert set(threading.enumerate()) <= before


def test_the_page_while_it_runs() -> None:
    with Monitor("served", watch=False, port=0, **QUIET) as monitor:
        monitor.step(num_samples=1)
        with urllib.request.urlopen(f"{monitor.url}/summary.json", timeout=10) as answer:
            assert json.load(answer)["name"] == "served"


def test_the_summary_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr("whet.scripts.monitor.monitor.Console", lambda **_: Console(file=text, width=80))
    with Monitor("shown", watch=False, interval_s=0.05) as monitor:
        monitor.step()
    assert "whet monitor  shown  ended" in text.getvalue()


def test_user_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="at least"):
        Monitor(interval_s=0.001)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot make the directory"):
        Monitor(out=tmp_path / "file" / "below")
    with Monitor(watch=False, port=0, **QUIET) as monitor:
        taken = int(str(monitor.url).rpartition(":")[2])
        with pytest.raises(OptionError, match="is in use"):
            Monitor(watch=False, port=taken, **QUIET)
    monkeypatch.delitem(sys.modules, "whet.scripts.monitor.server")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra):
        Monitor(watch=False, port=0, **QUIET)


def test_the_public_name() -> None:
    assert whet.Monitor is Monitor
