"""The statistics on the machine's own noise: a model against itself is no gain."""

import gc
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fake_bench
import pytest
import targets
import torch

from whet.comparison.claim import Verdict, claim_of
from whet.comparison.run import Run
from whet.errors import ModelError
from whet.measure.clock import measure_pairs
from whet.measure.isolate import Function, Outcome
from whet.measure.load import Load
from whet.measure.quiet import Patience
from whet.measure.stats import noise_floor
from whet.tuner import final_comparison, verdict
from whet.tuner.facts import TargetFacts
from whet.tuner.final_comparison import run_finals
from whet.tuner.result import Point, TrialRecord
from whet.tuner.search import Workbench, isolated
from whet.tuner.trial import look, replay


def test_twenty_real_comparisons_of_a_model_with_itself_give_no_gain() -> None:
    torch.manual_seed(0)
    model, (x,) = targets.conv()
    gc.freeze()  # each measurement collects garbage first, through all that other tests have left
    gains = 0
    for seed in range(20):
        pairs = measure_pairs([lambda: model(x)], [lambda: model(x)], budget_s=0.05, num_pairs=8, seed=seed)
        comparison = claim_of(pairs.first, pairs.second, noise=noise_floor([pairs.first]))
        gains += comparison.verdict is Verdict.PASS
    assert gains <= 1  # 5 % of 20


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Who was measured, in order: trial 0 a little slower than the original (-1), which fails where `fails` says so."""
    asked: list[int] = []

    def measure(bench: "Fails", contender: TrialRecord | None) -> Run:
        number = -1 if contender is None else contender.number
        asked.append(number)
        if number == -1 and bench.fails(asked.count(-1)):
            return Run(failure="lost")
        return Run(seconds={-1: 10.0, 0: 11.0, 1: 5.0}[number] + 0.01 * (len(asked) % 5))

    monkeypatch.setattr(final_comparison, "_measure", measure)
    monkeypatch.setattr(final_comparison, "_point", point)
    return asked


def point(bench: object, contender: TrialRecord | None, runs: list[Run]) -> Point:
    times = [run.seconds for run in runs]
    return Point(latency_ms=times[0], throughput_per_s=1.0, peak_bytes=0, size_bytes=0, process_latencies_ms=times)


@dataclass
class Fails:
    """The part of a workbench: whether the original's n-th process, from 1 on, fails."""

    fails: Callable[[int], bool] = lambda n: False


SLOWER, FASTER = (TrialRecord(number=i, steps=[], status="done") for i in (0, 1))


def test_who_loses_three_rounds_is_judged_by_those(asked: list[int]) -> None:
    _, points = run_finals(Fails(), [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    assert [len(p.process_latencies_ms) for p in points] == [3, 6]
    assert [p.verdict for p in points] == ["fail", "pass"]
    asked.clear()
    run_finals(Fails(), [SLOWER], deadline=0.0)  # type: ignore[arg-type]
    assert sorted(asked) == [-1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("failing", [{1}, {1, 2}, {2, 6}, {3}, {1, 2, 3, 4, 5}])
@pytest.mark.usefixtures("asked")
def test_a_round_in_which_the_original_fails_is_no_pair(failing: set[int]) -> None:
    bench = Fails(lambda n: n in failing)
    baseline, (slower, faster) = run_finals(bench, [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    num_pairs = min(6, 8 - len(failing))  # of eight rounds at most, as many as make six pairs
    assert len(baseline.process_latencies_ms) == len(faster.process_latencies_ms) == num_pairs
    assert len(slower.process_latencies_ms) == 3
    assert slower.speedup < 1 < faster.speedup
    assert slower.verdict != "pass"


@pytest.mark.usefixtures("asked")
def test_an_original_that_always_fails_is_an_error() -> None:
    with pytest.raises(ModelError, match="failed each time"):
        run_finals(Fails(lambda n: True), [FASTER], deadline=0.0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_twenty_real_comparisons_between_processes_give_no_gain(tmp_path: Path) -> None:
    run = isolated(None)
    target = f"{targets.HERE}:conv"
    facts = run(look, {"target": target, "directory": str(tmp_path)}, tmp_path / "look", 120).value
    assert facts is not None
    bench = Workbench(target, TargetFacts.model_validate(facts), tmp_path, run)
    # Two records of one and the same artefact: any difference between them is noise.
    replayed = run(
        replay,
        {"target": target, "steps": [], "directory": str(bench.artefact(0))},
        tmp_path / "a",
        120,
    )
    assert replayed.failure is None
    bench.artefact(1).parent.mkdir()
    bench.artefact(1).symlink_to(bench.artefact(0))
    gains = 0
    for seed in range(20):  # about 40 seconds each
        records = [TrialRecord(number=i, steps=[], status="done") for i in (0, 1)]
        _, (first, second) = run_finals(bench, records, deadline=0.0, seed=seed)
        rounds = list(zip(first.process_latencies_ms, second.process_latencies_ms, strict=False))  # one may have lost
        a, b = zip(*rounds, strict=True)
        gains += claim_of(a, b, noise=noise_floor([first.process_latencies_ms])).verdict is Verdict.PASS
    assert gains <= 1


class Busy:
    """Measures in place of processes: the original takes 10 ms, a contender 5; other processes disturb some of them,
    and make those ten times as slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disturbed: Callable[[int], bool], spread: float = 0.01) -> None:
        self.num = 0
        self._disturbed = disturbed
        self._noise = random.Random(0)
        self._spread = spread
        monkeypatch.setattr(final_comparison, "_measure", self._measure)
        monkeypatch.setattr(final_comparison, "_point", point)

    def _measure(self, bench: object, contender: TrialRecord | None) -> Run:
        is_disturbed = self._disturbed(self.num)
        self.num += 1
        seconds = (10.0 if contender is None else 5.0) * math.exp(self._noise.gauss(0, self._spread))
        return Run(seconds=seconds * (10 if is_disturbed else 1), busy="others" if is_disturbed else "")


def judge(contender: TrialRecord, on_busy: str = "wait", wait_s: float = 0.001) -> tuple[Point, list[Point], Patience]:
    def glance(seconds: float) -> tuple[Load, str]:
        return Load(seconds, 2, foreign_s=2 * seconds), "make (2.0 cores)"

    patience = Patience(on_busy, wait_s, glance=glance)
    baseline, points = run_finals(Fails(), [contender], deadline=0.0, patience=patience)  # type: ignore[arg-type]
    return baseline, points, patience


def test_processes_that_were_disturbed_are_in_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, lambda i: i in (1, 6))
    baseline, (point,), _ = judge(FASTER)
    assert max(*point.process_latencies_ms, *baseline.process_latencies_ms) < 11
    assert len(point.process_latencies_ms) == 6
    assert point.verdict == "pass"
    assert point.speedup == pytest.approx(2, rel=0.05)


def test_a_machine_that_stays_busy_gives_no_gain_whatever_the_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(monkeypatch, lambda i: True)
    baseline, points, patience = judge(FASTER)
    assert points == []
    assert busy.num <= 4
    said = verdict.inconclusive(baseline, points, patience)
    assert said.startswith("No verdict: the machine stayed busy for 0 s of waiting: others: make (2.0 cores).")


def test_who_goes_on_is_told_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, lambda i: True)
    _, (point,), patience = judge(FASTER, "go-on")
    assert point.verdict == "pass"
    assert patience.sentence == "the machine was busy: others"


def test_nothing_passes_where_the_original_differs_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, lambda i: False, spread=0.5)
    baseline, (point,), patience = judge(TrialRecord(number=1, steps=[], status="done"))
    assert baseline.noise > 1.25
    assert point.verdict == "inconclusive"
    assert "runs of the original differ from each other" in verdict.inconclusive(baseline, [point], patience)


@pytest.mark.parametrize(("again", "word"), [(2.1, "pass"), (30.0, "inconclusive")])
def test_finals_that_the_screening_denies_are_no_gain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: float, word: str
) -> None:
    """The screening is measured once more before it counts."""
    Busy(monkeypatch, lambda i: False)
    asked: list[str] = []

    def run(function: Function, arguments: object, directory: Path, time_limit_s: float) -> Outcome:
        asked.append(function.__name__)
        value = {"speedup": again, "speedup_ci95": [again * 0.98, again * 1.02], "busy": ""}
        return Outcome(value, None, 0.1, 0)

    contender = TrialRecord(number=1, steps=[], status="done", speedup=30.0, speedup_ci95=(29.0, 31.0))
    bench = Workbench("t", fake_bench.facts(), tmp_path, run)
    baseline, (point,) = run_finals(bench, [contender], deadline=0.0)
    assert asked == ["screen"]
    assert point.verdict == word
    assert ("beside the original in one process it is 30.00x as fast" in point.doubt) == (word == "inconclusive")
    if word == "inconclusive":
        said = verdict.inconclusive(baseline, [point], Patience())
        assert said.startswith("No verdict: original cannot be judged: beside the original")


def test_a_screening_that_agrees_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, lambda i: False)
    contender = TrialRecord(number=1, steps=[], status="done", speedup=2.3, speedup_ci95=(2.2, 2.4))
    _, (point,), _ = judge(contender)
    assert (point.verdict, point.doubt) == ("pass", "")


def test_too_few_quiet_rounds_are_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second process is disturbed, so the machine never looks hopeless, and hardly a pair is quiet."""
    Busy(monkeypatch, lambda i: i % 4 in (1, 2))
    baseline, points, patience = judge(FASTER)
    assert not patience.has_run_out
    assert all(len(point.process_latencies_ms) < 6 for point in points)
    said = verdict.inconclusive(baseline, points, patience, num_contenders=1)
    assert said.startswith("No verdict: too few rounds of the finals were quiet: others: make (2.0 cores).")
