"""Two processes that take turns: order, what is compared, and what happens where one of them ends before its time."""

import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from whet.errors import BaselineError
from whet.guard import turns
from whet.guard.checkout import Tree
from whet.guard.turns import NUM_BLOCKS, measure_pair
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


def trees(root: Path, *whats: str) -> tuple[Tree, Tree]:
    """Two trees, each with a sleepy.py that does its own."""
    found = []
    for name, what in zip(("old", "new"), whats, strict=True):
        (root / name).mkdir()
        (root / name / "sleepy.py").write_text(SLEEPY.format(what=what))
        found.append(Tree(name, root / name, root / name))
    return found[0], found[1]


def test_each_side_runs_the_code_of_its_tree(tmp_path: Path) -> None:
    sides = trees(tmp_path, "time.sleep(0.002)", "time.sleep(0.02)")
    times = measure_pair(sides, "sleepy.py:build", {}, 1, scratch=tmp_path / "scratch", budget_s=0.05, time_limit_s=60)
    assert 2 <= times.old_ms < 10
    assert 20 <= times.new_ms < 60


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("what", ["import os; os._exit(3)", "raise ValueError('no more')"])
def test_a_side_that_ends_is_named_and_ends_the_other(tmp_path: Path, broken: int, what: str) -> None:
    sides = trees(tmp_path, *(what if side == broken else "time.sleep(0.001)" for side in range(2)))
    began = time.monotonic()
    with pytest.raises(BaselineError, match=f"^in {sides[broken].name}: "):
        measure_pair(sides, "sleepy.py:build", {}, 0, scratch=tmp_path / "s", budget_s=0.05, time_limit_s=100)
    assert time.monotonic() - began < 60  # not only when its time was up


def test_blocks_alternate() -> None:
    seen: list[str] = []
    lines = socket.socketpair()

    def side(name: str, line: socket.socket, begins: bool) -> None:
        mine = turns._Turns(line, begins)
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


def side(blocks_ms: list[float], *, busy: tuple[int, ...] = (), cause: str = "") -> dict[str, object]:
    """What one side returns; another process held a core during the blocks of the numbers in `busy`."""
    loads = [
        asdict(Load(0.05, 2, waited_s=0.04 * (i in busy), foreign_s=0.05 * (i in busy))) for i in range(len(blocks_ms))
    ]
    return {"blocks_ms": blocks_ms, "loads": loads, "cause": cause}


def test_only_blocks_that_were_quiet_on_both_sides_count() -> None:
    old = side([2.0] * 4 + [2.0, 90.0, 2.0, 2.0], busy=(5,))
    new = side([3.0] * 4 + [80.0, 3.0, 3.0, 3.0], busy=(4,))
    times = turns.pair_times(old, new)
    assert times.cause == ""
    assert times.old_ms == pytest.approx(2.0)
    assert times.new_ms == pytest.approx(3.0)


def test_a_pair_with_too_few_quiet_blocks_says_what_disturbed_it() -> None:
    times = turns.pair_times(side([2.0] * 8, busy=tuple(range(6))), side([2.0] * 8))
    assert times.cause.startswith("other processes used")
    assert turns.pair_times(side([2.0] * 8), side([2.0] * 8, cause="heat")).cause == "heat"


def test_both_sides_measure_disturbed_blocks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "1.5")
    sides = trees(tmp_path, "pass", "pass")
    times = measure_pair(sides, "sleepy.py:build", {}, 0, scratch=tmp_path / "s", budget_s=0.4, time_limit_s=60)
    assert "other processes used 1.5 of" in times.cause
    assert times.load.seconds > 0.9  # three times as many blocks of 40 ms on two sides
