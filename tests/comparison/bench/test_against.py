import random
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from whet.comparison.bench.against import Benchmark, against_baseline, compare_with, run_gate
from whet.comparison.bench.checkout import Tree, checked_out
from whet.comparison.bench.formats import sentence
from whet.comparison.bench.report import Gate, Point, Sweep
from whet.comparison.run import Run, Side
from whet.comparison.schedules import Turns
from whet.comparison.stopping import Sequential
from whet.errors import BaselineError, OptionError
from whet.measure.load import Load
from whet.measure.machine import describe
from whet.measure.quiet import QuietWait

pytestmark = pytest.mark.usefixtures("forked")

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


@dataclass(frozen=True)
class Named:
    """A side that only has a name: the tests measure in its place."""

    name: str

    def run(self) -> Run:
        raise AssertionError("it is measured in turns")


def benchmarks(*labels: str) -> list[Benchmark]:
    return [(label, (Named(f"{label} in old"), Named(f"{label} in new"))) for label in labels]


def test_each_benchmark_ends_when_it_is_clear() -> None:
    noise = random.Random(0)
    asked: list[tuple[int, str]] = []

    def together(old: Side, new: Side, first: int) -> tuple[Run, Run]:
        label = old.name.partition(" ")[0]
        asked.append((first, label))
        spread = 0.02 if label == "noisy" else 0.002
        change = 1.5 if label == "slow" else 1.0
        return Run(seconds=1 + noise.gauss(0, spread)), Run(seconds=change * (1 + noise.gauss(0, spread)))

    gate = run_gate(benchmarks("slow", "same", "noisy"), (OLD, NEW), Turns(together), Sequential())
    by_label = {v.label: v for v in gate.verdicts}
    assert by_label["slow"].outcome == "fail"
    assert by_label["same"].outcome == "pass"
    assert by_label["slow"].num_pairs == 5
    assert by_label["noisy"].num_pairs > 5
    assert gate.outcome == "fail"
    begins = [first for first, label in asked if label == "slow"]
    assert len(begins) == 5
    assert set(begins) == {0, 1}  # neither side always goes first


class Disturbed:
    """Measures the same code; the pairs of some numbers were disturbed, and show one side three times as slow."""

    def __init__(self, disturbed: Callable[[int], bool]) -> None:
        self.num_pairs = 0
        self._disturbed = disturbed
        self._noise = random.Random(0)

    def __call__(self, old: Side, new: Side, first: int) -> tuple[Run, Run]:
        is_disturbed = self._disturbed(self.num_pairs)
        self.num_pairs += 1
        a, b = (1 + self._noise.gauss(0, 0.002) for _ in range(2))
        busy = "others had a core" if is_disturbed else ""
        return Run(seconds=a, busy=busy), Run(seconds=3 * b if is_disturbed else b, busy=busy)


def gate_of(*labels: str, measure: Disturbed, on_busy: str = "wait") -> Gate:
    return run_gate(benchmarks(*labels), (OLD, NEW), Turns(measure), Sequential(), patience=impatient(on_busy))


def impatient(on_busy: str = "wait") -> QuietWait:
    return QuietWait(
        on_busy, 0.001, glance=lambda seconds: (Load(seconds, 2, foreign_s=2 * seconds), "make (2.0 cores)")
    )


def test_pairs_that_were_disturbed_do_not_count() -> None:
    measure = Disturbed(lambda i: i % 2 == 1)
    gate = gate_of("same", measure=measure)
    (verdict,) = gate.verdicts
    assert (gate.outcome, verdict.num_pairs, verdict.busy) == ("pass", 5, "")
    assert measure.num_pairs == 9


def test_a_machine_that_stays_busy_gives_no_verdict_and_says_why() -> None:
    measure = Disturbed(lambda i: True)
    gate = gate_of("same", "other", measure=measure)
    assert measure.num_pairs == 3
    for verdict in gate.verdicts:
        assert (verdict.outcome, verdict.num_pairs, verdict.reason) == ("inconclusive", 0, "")
        assert "others had a core: make (2.0 cores)" in verdict.busy
        assert "0 of the pairs were quiet" in sentence(verdict)


def test_who_goes_on_gets_a_verdict_that_says_so() -> None:
    gate = gate_of("same", measure=Disturbed(lambda i: True), on_busy="go-on")
    (verdict,) = gate.verdicts
    assert verdict.outcome == "fail"
    assert "the machine was busy: others had a core" in sentence(verdict)


def test_a_baseline_or_a_sweep_of_a_busy_machine_gives_no_verdict() -> None:
    machine = describe()
    facts = {"fingerprint": machine.fingerprint, "machine": asdict(machine)}
    quiet, slow = ([1.0, 1.01, 0.99, 1.0, 1.0], [3.0, 3.1, 2.9, 3.0, 3.0])
    then = Sweep(points=[Point(target="t", process_latencies_ms=quiet)], **facts)
    now = Sweep(points=[Point(target="t", process_latencies_ms=slow)], **facts)
    assert against_baseline(then, now).outcome == "fail"
    now.points[0].busy = "others had a core"
    (verdict,) = against_baseline(then, now).verdicts
    assert (verdict.outcome, verdict.busy, verdict.reason) == ("inconclusive", "others had a core", "")
    now.points[0].busy, then.points[0].busy = "", "others had a core"
    (verdict,) = against_baseline(then, now).verdicts
    assert verdict.outcome == "inconclusive"
    assert "the baseline was measured on a busy machine (others had a core); save it again" in verdict.busy
