import random
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from whet.errors import BaselineError, OptionError
from whet.guard.against import compare_with, run_gate
from whet.guard.checkout import Tree, checked_out
from whet.guard.turns import PairTimes

OLD, NEW = Tree("old", Path(), Path()), Tree("new", Path(), Path())

TARGET = """
import torch
from torch import nn


class Products(nn.Module):
    def forward(self, x):
        for _ in range({times}):
            x = torch.tanh(x @ x)
        return x


def build():
    torch.manual_seed(0)
    return Products(), torch.randn(64, 64) / 8
"""


def _git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, the second twice as slow, in a directory below the root."""
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    _git(root, "init", "--quiet")
    for times in (20, 40):
        (root / "bench" / "products.py").write_text(TARGET.format(times=times))
        _git(root, "add", "-A")
        _git(root, "commit", "--quiet", "-m", f"{times} products")
    return root


def test_a_slower_commit_fails(repository: Path) -> None:
    gate = compare_with(["products.py:build"], against="HEAD~1", budget_s=0.1, directory=repository / "bench")
    (verdict,) = gate.verdicts
    assert gate.outcome == verdict.outcome == "fail", verdict
    assert verdict.slowdown is not None
    assert 1.2 < verdict.slowdown < 4.0  # about 2
    assert verdict.num_pairs == len(verdict.old_ms) == len(verdict.new_ms) < 20
    assert "HEAD~1 (" in gate.compared
    assert _git(repository, "worktree", "list").count("\n") == 1  # the other tree is gone


def test_what_is_compared_is_said(repository: Path) -> None:
    (repository / "bench" / "products.py").write_text(TARGET.format(times=10))
    with checked_out("main", repository / "bench") as (old, new):
        assert (old.working_directory / "products.py").read_text() == TARGET.format(times=40)
        assert new.working_directory == repository / "bench"
        assert "1 changed file" in new.name
        assert str(old.working_directory) in old.environment["PYTHONPATH"]
    assert not old.root.exists()


def test_references_and_places_that_do_not_exist(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="git knows no commit 'nowhere'"), checked_out("nowhere", repository):
        pass
    with pytest.raises(BaselineError, match="git knows no commit '--help'"), checked_out("--help", repository):
        pass
    with pytest.raises(BaselineError, match="not in a git work tree"), checked_out("HEAD", tmp_path):
        pass
    with pytest.raises(OptionError, match="tolerance"):
        compare_with(["x"], against="HEAD", tolerance=0.0, directory=repository)


def test_a_side_that_raises_is_named(repository: Path) -> None:
    (repository / "bench" / "products.py").write_text("raise ValueError('broken')\n")
    gate = compare_with(["products.py:build"], against="HEAD", directory=repository / "bench")
    assert gate.outcome == "inconclusive"
    assert "in the work tree" in gate.verdicts[0].reason
    assert "broken" in gate.verdicts[0].reason


def test_each_benchmark_ends_when_it_is_clear() -> None:
    noise = random.Random(0)
    asked: list[tuple[int, str]] = []

    def measure(trees: tuple[Tree, Tree], target: str, sizes: Mapping[str, int], first: int) -> PairTimes:
        asked.append((first, target))
        spread = 0.02 if target == "noisy" else 0.002
        change = 1.5 if target == "slow" else 1.0
        return PairTimes(1 + noise.gauss(0, spread), change * (1 + noise.gauss(0, spread)))

    gate = run_gate([("slow", {}), ("same", {}), ("noisy", {})], (OLD, NEW), measure)
    by_label = {v.label: v for v in gate.verdicts}
    assert by_label["slow"].outcome == "fail"
    assert by_label["same"].outcome == "pass"
    assert by_label["slow"].num_pairs == 5
    assert by_label["noisy"].num_pairs > 5
    assert gate.outcome == "fail"
    begins = [first for first, target in asked if target == "slow"]
    assert len(begins) == 5
    assert set(begins) == {0, 1}  # neither side always goes first
