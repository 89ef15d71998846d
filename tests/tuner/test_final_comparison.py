"""The statistics on the machine's own noise: a model against itself is no gain."""

import gc
import math
import random
from collections.abc import Callable
from pathlib import Path

import fake_search
import pytest
import targets
import torch
from fake_kind import FakeKind, work

from whet.comparison.claim import Verdict, claim_of
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds
from whet.measure.clock import measure_pairs
from whet.measure.isolate import Function, Outcome
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.measure.stats import noise_floor
from whet.tuner import verdict
from whet.tuner.doubt import doubt_about
from whet.tuner.finals import Finals, compare_finalists
from whet.tuner.goal import Goal
from whet.tuner.model_sides import model_side
from whet.tuner.processes import isolated
from whet.tuner.records import Timing, TrialRecord
from whet.tuner.target_examination import Examination, ExaminationRequest, examine_any
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


class Asks(FakeKind):
    """Trial 0 is a little slower than the original (-1), which fails in its n-th process where `fails` says so."""

    def __init__(self, fails: Callable[[int], bool] = lambda n: False) -> None:
        super().__init__(measure=self._run)
        self.order: list[int] = []
        self._fails = fails
        self.work = work(budget_s=1e-9)  # no more rounds than a verdict needs

    def _run(self, record: TrialRecord | None) -> Run:
        number = -1 if record is None else record.number
        self.order.append(number)
        if number == -1 and self._fails(self.order.count(-1)):
            return Run(failure="lost")
        return Run(seconds={-1: 10.0, 0: 11.0, 1: 5.0}[number] + 0.01 * (len(self.order) % 5))


SLOWER, FASTER = (TrialRecord(number=i, steps=[], status="done") for i in (0, 1))


@pytest.fixture(autouse=True)
def a_budget_that_may_be_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tuner.budget._GRACE_S", math.inf)


def test_who_loses_three_rounds_is_judged_by_those() -> None:
    found = compare_finalists(Asks(), [SLOWER, FASTER], [])
    assert [len(p.process_latencies_ms) for p in found.points] == [3, 6]
    assert [p.verdict for p in found.points] == ["fail", "pass"]
    alone = Asks()
    compare_finalists(alone, [SLOWER], [])
    assert sorted(alone.order) == [-1, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("failing", [{1}, {1, 2}, {2, 6}, {3}, {1, 2, 3, 4, 5}])
def test_a_round_in_which_the_original_fails_is_no_pair(failing: set[int]) -> None:
    found = compare_finalists(Asks(lambda n: n in failing), [SLOWER, FASTER], [])
    slower, faster = found.points
    num_pairs = min(6, 8 - len(failing))  # of eight rounds at most, as many as make six pairs
    assert len(found.baseline.process_latencies_ms) == len(faster.process_latencies_ms) == num_pairs
    assert len(slower.process_latencies_ms) == 3
    assert slower.speedup < 1 < faster.speedup
    assert slower.verdict != "pass"
    assert not found.failures


def test_an_original_that_always_fails_is_named() -> None:
    found = compare_finalists(Asks(lambda n: True), [FASTER], [])
    assert not found.points and found.failures == ("the original: lost",)


def test_who_is_slower_and_smaller_has_all_of_its_pairs() -> None:
    """Three lost pairs end a search for speed; where memory is asked for, they prove nothing."""

    def measure(record: TrialRecord | None) -> Run:
        return Run(seconds=10.0, peak_bytes=1000) if record is None else Run(seconds=11.0, peak_bytes=500)

    kind = FakeKind(Goal("memory"), measure)
    found = compare_finalists(kind, [SLOWER], [SLOWER])
    (point,) = found.points
    assert (len(point.process_latencies_ms), point.is_smaller, point.verdict) == (8, True, "fail")
    assert verdict.decide(kind, found, [SLOWER]).word == "gain"
    of_training = FakeKind(Goal("memory", max_slowdown=1.05).for_training(), measure)
    assert verdict.decide(of_training, compare_finalists(of_training, [SLOWER], []), [SLOWER]).word == "no-gain"


def test_without_finalists_the_original_is_measured_alone_where_the_kind_does_that() -> None:
    kind = Asks()
    assert len(compare_finalists(kind, [], []).baseline.process_latencies_ms) == len(kind.order) == 1
    silent = Asks()
    silent.times_original_alone = False  # type: ignore[misc]
    compare_finalists(silent, [], [])
    assert not silent.order


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_real_comparisons_between_processes_give_no_gain(tmp_path: Path) -> None:
    run = isolated(None)
    target = f"{targets.HERE}:conv"
    request = ExaminationRequest(target=target, directory=tmp_path)
    found = run(examine_any, request, tmp_path / "examination", 120).answer(Examination)
    assert found is not None and found.facts is not None
    trials = TrialContext(target, found.facts, tmp_path, run)
    # Two records of one and the same artefact: any difference between them is noise.
    saved = run(save_original, TrialRequest(known=trials.known, directory=trials.artefact(0)), tmp_path / "a", 120)
    assert saved.failure is None
    trials.artefact(1).parent.mkdir()
    trials.artefact(1).symlink_to(trials.artefact(0))
    gains = 0
    for seed in range(20):  # about 40 seconds each
        records = [TrialRecord(number=i, steps=[], status="done") for i in (0, 1)]
        kind = FakeKind(measure=lambda record: model_side(trials, record).run())
        kind.schedule = Rounds(seed)  # type: ignore[misc]
        kind.work = work(budget_s=1e-9)
        first, second = compare_finalists(kind, records, []).points
        rounds = list(zip(first.process_latencies_ms, second.process_latencies_ms, strict=False))  # one may have lost
        a, b = zip(*rounds, strict=True)
        gains += claim_of(a, b, noise=noise_floor([first.process_latencies_ms])).verdict is Verdict.PASS
    assert gains <= 1


class Busy:
    """Measures in place of processes: the original takes 10 ms, a finalist 5; other processes disturb some of them,
    and make those ten times as slow."""

    def __init__(self, disturbed: Callable[[int], bool], spread: float = 0.01) -> None:
        self.num = 0
        self._disturbed = disturbed
        self._noise = random.Random(0)
        self._spread = spread

    def __call__(self, finalist: TrialRecord | None) -> Run:
        is_disturbed = self._disturbed(self.num)
        self.num += 1
        seconds = (10.0 if finalist is None else 5.0) * math.exp(self._noise.gauss(0, self._spread))
        return Run(seconds=seconds * (10 if is_disturbed else 1), busy="others" if is_disturbed else "")


def judge(busy: Busy, finalist: TrialRecord, on_busy: str = "wait", wait_s: float = 0.001) -> tuple[Finals, QuietWait]:
    def glance(seconds: float) -> tuple[Load, str]:
        return Load(seconds, 2, foreign_s=2 * seconds), "make (2.0 cores)"

    patience = QuietWait(on_busy, wait_s, glance=glance)
    kind = FakeKind(measure=busy)
    kind.work = work(patience, budget_s=1e-9)
    return compare_finalists(kind, [finalist], []), patience


def test_processes_that_were_disturbed_are_in_no_pair() -> None:
    found, _ = judge(Busy(lambda i: i in (1, 6)), FASTER)
    (point,) = found.points
    assert max(*point.process_latencies_ms, *found.baseline.process_latencies_ms) < 11_000
    assert len(point.process_latencies_ms) == 6
    assert point.verdict == "pass"
    assert point.speedup == pytest.approx(2, rel=0.05)


def test_a_machine_that_stays_busy_gives_no_gain_whatever_the_factor() -> None:
    busy = Busy(lambda i: True)
    found, patience = judge(busy, FASTER)
    assert found.points == []
    assert busy.num <= 4
    said = verdict.disturbed(found, patience)
    assert said.startswith("the machine stayed busy for 0 s of waiting: others: make (2.0 cores)")


def test_who_goes_on_is_told_what_was_measured() -> None:
    found, patience = judge(Busy(lambda i: True), FASTER, "go-on")
    assert found.points[0].verdict == "pass"
    assert patience.sentence == "the machine was busy: others"


def test_nothing_passes_where_the_original_differs_from_itself() -> None:
    found, patience = judge(Busy(lambda i: False, spread=0.5), TrialRecord(number=1, steps=[], status="done"))
    (point,) = found.points
    assert found.baseline.noise > 1.25
    assert point.verdict == "inconclusive"
    assert "runs of the original differ by up to" in verdict.disturbed(found, patience)


@pytest.mark.parametrize(("again", "is_doubted"), [(2.1, False), (30.0, True)])
def test_finals_that_the_screening_denies_are_no_gain(tmp_path: Path, again: float, is_doubted: bool) -> None:
    """The screening is measured once more before it counts."""
    asked: list[str] = []

    def run(function: Function, arguments: object, directory: Path, time_limit_s: float) -> Outcome:
        asked.append(function.__name__)
        value = Timing(
            latency_ms=1.0, baseline_latency_ms=again, speedup=again, speedup_ci95=(again * 0.98, again * 1.02)
        ).model_dump(mode="json")
        return Outcome(value, None, 0.1, 0)

    finalist = TrialRecord(number=1, steps=[], status="done", speedup=30.0, speedup_ci95=(29.0, 31.0))
    trials = TrialContext("t", fake_search.facts(), tmp_path, run)
    claim = claim_of([10.0, 10.1, 9.9, 10.0, 10.2, 9.8], [5.0, 5.1, 4.9, 5.0, 5.1, 4.9], noise=1.01)
    doubt = doubt_about(trials, finalist, claim, QuietWait("go-on"))
    assert asked == ["screen_again"]
    assert bool(doubt) is is_doubted
    assert not doubt or doubt.startswith("beside the original in one process it is 30.00x as fast")
    near = finalist.model_copy(update={"speedup": 2.3, "speedup_ci95": (2.2, 2.4)})
    assert doubt_about(trials, near, claim, QuietWait("go-on")) == ""
    assert asked == ["screen_again"], "a screening that agrees is not measured again"


def test_too_few_quiet_rounds_are_no_verdict() -> None:
    """Each second process is disturbed, so the machine never looks hopeless, and hardly a pair is quiet."""
    found, patience = judge(Busy(lambda i: i % 4 in (1, 2)), FASTER)
    assert not patience.has_run_out
    assert all(len(point.process_latencies_ms) < 6 for point in found.points)
    said = verdict.disturbed(found, patience)
    assert said.startswith("too few rounds of the finals were quiet: others: make (2.0 cores)")
