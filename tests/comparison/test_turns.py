"""Two processes that take turns: order, what is compared, and what happens where one of them ends before its time."""

import socket
import threading
import time
from pathlib import Path

import pytest

from whet.comparison import child
from whet.comparison.bench.point import first_calls
from whet.comparison.child import NUM_BLOCKS
from whet.comparison.run import Run
from whet.comparison.turns import held_together, take_turns
from whet.comparison.variant import Variant
from whet.measure.load import Load

SLEEPY = """
import time
from dataclasses import asdict
import torch
from torch import nn


class Sleepy(nn.Module):
    def forward(self, x):
        {what}
        return x


def build():
    return Sleepy(), torch.ones(1)
"""


def sides(root: Path, *whats: str, budget_s: float = 0.05) -> tuple[Variant, Variant]:
    """Two variants, each with a sleepy.py that does its own."""
    found = []
    for name, what in zip(("old", "new"), whats, strict=True):
        (root / name).mkdir()
        (root / name / "sleepy.py").write_text(SLEEPY.format(what=what))
        found.append(
            Variant(
                name=name,
                build=first_calls,
                arguments={"target": "sleepy.py:build", "sizes": {}},
                directory=root / f"{name}-runs",
                budget_s=budget_s,
                time_limit_s=100,
                working_directory=root / name,
                with_evidence=False,
            )
        )
    return found[0], found[1]


def test_each_side_runs_its_own_code(tmp_path: Path) -> None:
    old, new = take_turns(*sides(tmp_path, "time.sleep(0.002)", "time.sleep(0.02)"), 1)
    assert 2 <= old.latency_ms < 10
    assert 20 <= new.latency_ms < 60


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("what", ["import os; os._exit(3)", "raise ValueError('no more')"])
def test_a_side_that_ends_is_named_and_ends_the_other(tmp_path: Path, broken: int, what: str) -> None:
    both = sides(tmp_path, *(what if side == broken else "time.sleep(0.001)" for side in range(2)))
    began = time.monotonic()
    runs = take_turns(*both, 0)
    assert time.monotonic() - began < 60  # not only when its time was up
    assert "exit code 3" in runs[broken].failure or "no more" in runs[broken].failure
    assert runs[1 - broken].failure == ""


def test_blocks_alternate() -> None:
    seen: list[str] = []
    lines = socket.socketpair()

    def side(name: str, line: socket.socket, begins: bool) -> None:
        mine = child._Turns(line, begins)
        for _ in range(NUM_BLOCKS):
            with mine.mine():
                seen.append(name)

    both = [threading.Thread(target=side, args=(name, lines[i], i == 1)) for i, name in enumerate("ab")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert seen == ["b", "a"] * NUM_BLOCKS
    for line in lines:
        line.close()


def run(blocks_s: list[float], *, busy: tuple[int, ...] = (), cause: str = "") -> Run:
    """What one side returns; another process held a core during the blocks of the numbers in `busy`."""
    loads = tuple(
        Load(0.05, 2, waited_s=0.04 * (i in busy), foreign_s=0.05 * (i in busy)) for i in range(len(blocks_s))
    )
    return Run(blocks_s=tuple(blocks_s), loads=loads, busy=cause)


def test_only_blocks_that_were_quiet_on_both_sides_count() -> None:
    old, new = held_together(
        run([2.0] * 4 + [2.0, 90.0, 2.0, 2.0], busy=(5,)), run([3.0] * 4 + [80.0, 3.0, 3.0, 3.0], busy=(4,))
    )
    assert (old.busy, new.busy) == ("", "")
    assert old.seconds == pytest.approx(2.0)
    assert new.seconds == pytest.approx(3.0)


def test_a_pair_with_too_few_quiet_blocks_says_what_disturbed_it() -> None:
    old, new = held_together(run([2.0] * 8, busy=tuple(range(6))), run([2.0] * 8))
    assert old.busy == new.busy
    assert old.busy.startswith("other processes used")
    assert held_together(run([2.0] * 8), run([2.0] * 8, cause="heat"))[0].busy == "heat"


def test_both_sides_measure_disturbed_blocks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "1.5")
    old, new = take_turns(*sides(tmp_path, "pass", "pass", budget_s=0.4), 0)
    assert "other processes used 1.5 of" in old.busy
    assert (old.load + new.load).seconds > 0.9  # three times as many blocks of 40 ms on two sides
