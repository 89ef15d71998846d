"""The statistics on the machine's own noise: a model against itself is no gain."""

import gc
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fake_search
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
from whet.tuner.final_comparison import compare_finalists
from whet.tuner.processes import isolated
from whet.tuner.records import Timing, TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.target_examination import ExaminationRequest, examine_target
from whet.tuner.trial import TrialRequest, save_original
from whet.tuner.trial_context import TrialContext

pytestmark = pytest.mark.usefixtures("forked")


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

    def measure(context: "Fails", finalist: TrialRecord | None) -> Run:
        number = -1 if finalist is None else finalist.number
        asked.append(number)
        if number == -1 and context.fails(asked.count(-1)):
            return Run(failure="lost")
        return Run(seconds={-1: 10.0, 0: 11.0, 1: 5.0}[number] + 0.01 * (len(asked) % 5))

    monkeypatch.setattr(final_comparison, "_measure", measure)
    monkeypatch.setattr(final_comparison, "_point", point)
    return asked


def point(context: object, finalist: TrialRecord | None, runs: list[Run]) -> MeasuredVariant:
    times = [run.seconds for run in runs]
    return MeasuredVariant(
        latency_ms=times[0], throughput_per_s=1.0, peak_bytes=0, size_bytes=0, process_latencies_ms=times
    )


@dataclass
class Fails:
    """The part of a context that counts here: whether the original's n-th process, from 1 on, fails."""

    fails: Callable[[int], bool] = lambda n: False


SLOWER, FASTER = (TrialRecord(number=i, steps=[], status="done") for i in (0, 1))


def test_who_loses_three_rounds_is_judged_by_those(asked: list[int]) -> None:
    _, points = compare_finalists(Fails(), [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    assert [len(p.process_latencies_ms) for p in points] == [3, 6]
    assert [p.verdict for p in points] == ["fail", "pass"]
    asked.clear()
    compare_finalists(Fails(), [SLOWER], deadline=0.0)  # type: ignore[arg-type]
    assert sorted(asked) == [-1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("failing", [{1}, {1, 2}, {2, 6}, {3}, {1, 2, 3, 4, 5}])
@pytest.mark.usefixtures("asked")
def test_a_round_in_which_the_original_fails_is_no_pair(failing: set[int]) -> None:
    fails = Fails(lambda n: n in failing)
    baseline, (slower, faster) = compare_finalists(fails, [SLOWER, FASTER], deadline=0.0)  # type: ignore[arg-type]
    num_pairs = min(6, 8 - len(failing))  # of eight rounds at most, as many as make six pairs
    assert len(baseline.process_latencies_ms) == len(faster.process_latencies_ms) == num_pairs
    assert len(slower.process_latencies_ms) == 3
    assert slower.speedup < 1 < faster.speedup
    assert slower.verdict != "pass"


@pytest.mark.usefixtures("asked")
def test_an_original_that_always_fails_is_an_error() -> None:
    with pytest.raises(ModelError, match="failed each time"):
        compare_finalists(Fails(lambda n: True), [FASTER], deadline=0.0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_twenty_real_comparisons_between_processes_give_no_gain(tmp_path: Path) -> None:
    run = isolated(None)
    target = f"{targets.HERE}:conv"
    request = ExaminationRequest(target=target, directory=tmp_path)
    facts = run(examine_target, request, tmp_path / "examination", 120).answer(TargetFacts)
    assert facts is not None
    trials = TrialContext(target, facts, tmp_path, run)
    # Two records of one and the same artefact: any difference between them is noise.
    saved = run(save_original, TrialRequest(known=trials.known, directory=trials.artefact(0)), tmp_path / "a", 120)
    assert saved.failure is None
    trials.artefact(1).parent.mkdir()
    trials.artefact(1).symlink_to(trials.artefact(0))
    gains = 0
    for seed in range(20):  # about 40 seconds each
        records = [TrialRecord(number=i, steps=[], status="done") for i in (0, 1)]
        _, (first, second) = compare_finalists(trials, records, deadline=0.0, seed=seed)
        rounds = list(zip(first.process_latencies_ms, second.process_latencies_ms, strict=False))  # one may have lost
        a, b = zip(*rounds, strict=True)
        gains += claim_of(a, b, noise=noise_floor([first.process_latencies_ms])).verdict is Verdict.PASS
    assert gains <= 1


class Busy:
    """Measures in place of processes: the original takes 10 ms, a finalist 5; other processes disturb some of them,
    and make those ten times as slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disturbed: Callable[[int], bool], spread: float = 0.01) -> None:
        self.num = 0
        self._disturbed = disturbed
        self._noise = random.Random(0)
        self._spread = spread
        monkeypatch.setattr(final_comparison, "_measure", self._measure)
        monkeypatch.setattr(final_comparison, "_point", point)

    def _measure(self, context: object, finalist: TrialRecord | None) -> Run:
        is_disturbed = self._disturbed(self.num)
        self.num += 1
        seconds = (10.0 if finalist is None else 5.0) * math.exp(self._noise.gauss(0, self._spread))
        return Run(seconds=seconds * (10 if is_disturbed else 1), busy="others" if is_disturbed else "")


def judge(
    finalist: TrialRecord, on_busy: str = "wait", wait_s: float = 0.001
) -> tuple[MeasuredVariant, list[MeasuredVariant], Patience]:
    def glance(seconds: float) -> tuple[Load, str]:
        return Load(seconds, 2, foreign_s=2 * seconds), "make (2.0 cores)"

    patience = Patience(on_busy, wait_s, glance=glance)
    baseline, points = compare_finalists(Fails(), [finalist], deadline=0.0, patience=patience)  # type: ignore[arg-type]
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
    assert "runs of the original differ by up to" in verdict.inconclusive(baseline, [point], patience)


@pytest.mark.parametrize(("again", "word"), [(2.1, "pass"), (30.0, "inconclusive")])
def test_finals_that_the_screening_denies_are_no_gain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: float, word: str
) -> None:
    """The screening is measured once more before it counts."""
    Busy(monkeypatch, lambda i: False)
    asked: list[str] = []

    def run(function: Function, arguments: object, directory: Path, time_limit_s: float) -> Outcome:
        asked.append(function.__name__)
        value = Timing(
            latency_ms=1.0, baseline_latency_ms=again, speedup=again, speedup_ci95=(again * 0.98, again * 1.02)
        ).model_dump(mode="json")
        return Outcome(value, None, 0.1, 0)

    finalist = TrialRecord(number=1, steps=[], status="done", speedup=30.0, speedup_ci95=(29.0, 31.0))
    trials = TrialContext("t", fake_search.facts(), tmp_path, run)
    baseline, (point,) = compare_finalists(trials, [finalist], deadline=0.0)
    assert asked == ["screen_again"]
    assert point.verdict == word
    assert ("beside the original in one process it is 30.00x as fast" in point.doubt) == (word == "inconclusive")
    if word == "inconclusive":
        said = verdict.inconclusive(baseline, [point], Patience())
        assert said.startswith("No verdict: original cannot be judged: beside the original")


def test_a_screening_that_agrees_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Busy(monkeypatch, lambda i: False)
    finalist = TrialRecord(number=1, steps=[], status="done", speedup=2.3, speedup_ci95=(2.2, 2.4))
    _, (point,), _ = judge(finalist)
    assert (point.verdict, point.doubt) == ("pass", "")


def test_too_few_quiet_rounds_are_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second process is disturbed, so the machine never looks hopeless, and hardly a pair is quiet."""
    Busy(monkeypatch, lambda i: i % 4 in (1, 2))
    baseline, points, patience = judge(FASTER)
    assert not patience.has_run_out
    assert all(len(point.process_latencies_ms) < 6 for point in points)
    said = verdict.inconclusive(baseline, points, patience, num_finalists=1)
    assert said.startswith("No verdict: too few rounds of the finals were quiet: others: make (2.0 cores).")
