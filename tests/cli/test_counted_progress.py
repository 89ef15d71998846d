"""Progress where output is piped: a few lines, and never one for each thing."""

import io

import pytest
from rich.console import Console

from whet.cli import counted_progress as module
from whet.cli.counted_progress import CountedProgress


def lines_of(total: int | None, seconds: int, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = False) -> str:
    """Return what is printed of a task that counts ten things a second. The clock is the test's own."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with CountedProgress(console) as progress:
        task = progress.begin("frames", total)
        for _ in range(10 * seconds):
            now[0] += 0.1
            progress.advance(task)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_lines_come_at_growing_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines_of(6000, 600, monkeypatch).splitlines()
    assert found[:3] == ["frames: 0 of 6,000", "frames: 51 of 6,000, 10.0/s", "frames: 152 of 6,000, 10.0/s"]
    assert 10 < len(found) < 16  # once a minute at the end


def test_without_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(None, 6, monkeypatch).splitlines() == ["frames: 0", "frames: 51, 10.0/s"]


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "frames: 0" not in lines_of(100, 10, monkeypatch, is_terminal=True)
