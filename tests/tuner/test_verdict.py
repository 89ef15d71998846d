"""The verdict: what is proved better within the limits, and in a sentence why, or why the original stays."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_kind import FakeKind, work
from points_and_trials import BASELINE, THIN, point, trial

from whet.core.recipe import Step
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.techniques.proof.loss_proof import LossProof
from whet.tuner import verdict
from whet.tuner.finals import Finals
from whet.tuner.goal import Goal
from whet.tuner.improvement import improves
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.verdict import decide


@pytest.mark.parametrize(
    ("objective", "why"),
    [
        ("memory", "is proved to need less memory at its peak than the original"),
        ("size", "is smaller on disk than the original"),
        ("latency", "is proved better than the original in latency (noise floor "),
        ("throughput", "is proved better than the original in throughput (noise floor "),
    ],
)
def test_it_speaks_of_what_was_asked_for(objective, why) -> None:
    done, rejected = TrialRecord(number=0, steps=[], status="done"), TrialRecord(number=1, steps=[], status="rejected")
    said = verdict.no_gain(Goal(objective), BASELINE, [done, rejected])
    assert said.startswith(f"No gain: nothing that was tried {why}")
    assert said.endswith("; the original stays.")


def test_where_all_break_the_limits_the_fastest_says_which() -> None:
    reason = "peak memory 312 MiB, more than the 305 MiB allowed"
    records = [
        TrialRecord(number=0, steps=[], status="rejected", speedup=1.1, reason="accuracy fell"),
        TrialRecord(number=1, steps=[], status="rejected", speedup=6.0, reason=reason),
        TrialRecord(number=2, steps=[], status="failed", reason="a crash"),
    ]
    said = verdict.no_gain(Goal("latency"), BASELINE, records)
    assert said == (
        f"No gain: nothing that was tried stayed within the limits; the fastest, {records[1].label}: {reason}; "
        "the original stays."
    )


def best_of(goal: Goal, baseline: MeasuredVariant, points: Sequence[MeasuredVariant]) -> MeasuredVariant:
    """What is kept, where nothing owes a proof."""
    return decide(FakeKind(goal), Finals(baseline, list(points), (), len(points)), []).best


def test_a_trial_that_broke_a_limit_in_the_finals_does_not_win() -> None:
    fast = BASELINE.model_copy(update={"label": "fast", "speedup": 3.0, "verdict": "pass", "peak_bytes": 400 << 20})
    assert best_of(Goal("latency"), BASELINE, [fast]) is fast
    goal = Goal("latency", max_memory_bytes=300 << 20)
    assert best_of(goal, BASELINE, [fast]) is BASELINE
    said = verdict.no_gain(goal, BASELINE, [TrialRecord(number=0, steps=[], status="done")], [fast])
    assert "fast is better, but held 419 MB in the finals, more than allowed" in said
    slow = fast.model_copy(update={"verdict": "fail"})
    assert "memory" not in verdict.no_gain(goal, BASELINE, [TrialRecord(number=0, steps=[], status="done")], [slow])


def test_nothing_measured_is_no_measured_no_gain() -> None:
    failed = [TrialRecord(number=i, steps=[], status="failed", reason=f"crash {i}") for i in range(2)]
    assert verdict.all_failed(failed)
    said = verdict.no_gain(Goal(), BASELINE, failed)
    assert "could be measured" in said
    assert "crash 0" in said
    assert not verdict.all_failed([*failed, TrialRecord(number=2, steps=[], status="rejected")])
    assert not verdict.all_failed([])
    assert "no technique was tried" in verdict.no_gain(Goal(), BASELINE, [])
    assert "no technique was tried: forward prints;" in verdict.no_gain(Goal(), BASELINE, [], no_graph="forward prints")


@pytest.mark.parametrize(("objective", "best"), [("latency", 1), ("throughput", 1), ("memory", 2), ("size", 3)])
def test_the_best_in_what_was_asked_for_is_chosen(objective: Any, best: int) -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 1000, "size_bytes": 1000})
    points = [
        point("a", speedup=2.0, peak_bytes=900, size_bytes=900),
        point("b", speedup=3.0, peak_bytes=800, size_bytes=800),
        point("c", speedup=1.5, peak_bytes=600, size_bytes=850),
        point("d", speedup=1.2, peak_bytes=700, size_bytes=500),
    ]
    points = [one.model_copy(update={"is_smaller": True}) for one in points]
    assert best_of(Goal(objective), baseline, points) is points[best]
    assert best_of(Goal(objective), baseline, points[::-1]) is points[best]
    assert best_of(Goal(objective), baseline, []) is baseline


def test_of_equally_small_ones_the_faster_is_chosen() -> None:
    baseline = BASELINE.model_copy(update={"size_bytes": 1000})
    slow, fast = point("slow", speedup=0.5, size_bytes=500), point("fast", speedup=2.0, size_bytes=500)
    assert best_of(Goal("size"), baseline, [slow, fast]) is fast
    assert best_of(Goal("size"), baseline, [fast, slow]) is fast


@pytest.mark.parametrize("is_it", [True, False])
def test_memory_is_better_where_each_pair_is_smaller_and_no_slower_than_allowed(is_it: bool) -> None:
    small = point(is_smaller=is_it, speedup_ci95=(0.7, 0.8), verdict="fail")
    assert improves(Goal("memory"), BASELINE, small) is is_it
    of_training = Goal("memory", max_slowdown=1.3).for_training()
    assert not improves(of_training, BASELINE, small), "1 / 0.7 is more than 1.3"
    assert improves(replace(of_training, max_slowdown=1.5), BASELINE, small) is is_it


def test_only_a_proved_speedup_is_one() -> None:
    for word, is_proved in (("pass", True), ("fail", False), ("inconclusive", False), ("screened", False)):
        assert improves(Goal(), BASELINE, point(speedup=3.0, verdict=word)) is is_proved


def test_what_is_within_the_memory_allowed_may_win() -> None:
    goal = Goal(max_memory_bytes=BASELINE.peak_bytes)
    assert improves(goal, BASELINE, point())
    assert not improves(goal, BASELINE, point(peak_bytes=BASELINE.peak_bytes + 1))
    assert not improves(Goal("size", max_memory_bytes=1), BASELINE, point(peak_bytes=2, size_bytes=1))


def test_the_noise_in_words() -> None:
    assert verdict.noise_in_words(BASELINE.model_copy(update={"noise": 1.034})) == "3.4%"
    assert verdict.noise_in_words(BASELINE.model_copy(update={"noise": 1.0})) == "unknown: too few runs"


def busy(on_busy: str = "wait", num_disturbed: int = 1, wait_s: float = 0.0) -> QuietWait:
    """QuietWait after so many disturbed measurements in a row."""
    patience = QuietWait(on_busy, wait_s, glance=lambda seconds: (Load(seconds, 2), ""))
    for _ in range(num_disturbed):
        patience.measure(lambda: "others", lambda cause: cause)
    return patience


def disturbed(
    points: Sequence[MeasuredVariant],
    patience: QuietWait,
    num_finalists: int = 0,
    baseline: MeasuredVariant = BASELINE,
    **known: Any,
) -> str:
    """Why finals do not count, a run of which was disturbed."""
    return verdict.disturbed(Finals(baseline, list(points), (), num_finalists, is_disturbed=True), patience, **known)


def test_nothing_stands_in_the_way_of_a_verdict_on_a_quiet_machine() -> None:
    assert disturbed([], QuietWait()) == ""
    quiet = Finals(BASELINE, [point(), point(**THIN)], (), 3)
    assert verdict.disturbed(quiet, busy()) == "", "what was disturbed before the finals does not count"
    loud = BASELINE.model_copy(update={"noise": 1.25})
    assert disturbed([point()], QuietWait(), baseline=loud) == ""


@pytest.mark.parametrize(
    ("points", "num_contenders", "is_open"),
    [
        ([point()], 1, False),
        ([point()], 2, True),  # one of them came into no quiet round
        ([point(**THIN)], 1, True),
        ([point(), point(**THIN)], 2, True),
        ([point(**{**THIN, "process_latencies_ms": [1.0] * 6})], 1, False),
        ([point(**{**THIN, "verdict": "fail"})], 1, False),
    ],
)
def test_too_few_quiet_rounds_leave_it_open(points: list[MeasuredVariant], num_contenders: int, is_open: bool) -> None:
    said = disturbed(points, busy(), num_contenders)
    assert said.startswith("too few rounds of the finals were quiet: others") is is_open
    assert bool(said) is is_open
    assert disturbed(points, busy("go-on"), num_contenders) == ""


def test_why_there_is_no_verdict() -> None:
    assert disturbed([point()], busy(num_disturbed=3)) == ("the machine stayed busy for 0 s of waiting: others")
    doubted = [point(), point("y", doubt="it is odd"), point("z", doubt="it is odder")]
    assert disturbed(doubted, QuietWait()) == "y cannot be judged: it is odd"
    loud = BASELINE.model_copy(update={"noise": 1.4})
    assert disturbed([point()], QuietWait(), baseline=loud) == (
        "runs of the original differ by up to 1.40x; a verdict needs at most 1.25x"
    )
    assert disturbed([], QuietWait(), baseline=loud) == ""
    assert disturbed([point()], QuietWait(), baseline=loud, counts_noise=False) == "", "pairs cancel it"
    kind = FakeKind()
    kind.work = work(busy(num_disturbed=3))
    found = decide(kind, Finals(BASELINE, [], (), 1), [trial(speedup=2.0)])
    assert (found.word, found.needed_s, found.is_disturbed) == ("inconclusive", None, True)
    assert found.sentence == (
        "No verdict: the machine stayed busy for 0 s of waiting: others. The original stays. "
        "On a quiet machine, --resume goes on from here."
    )


def test_no_gain_names_the_one_nearest_to_the_original() -> None:
    beaten = trial(speedup=0.29)
    assert verdict.no_gain(Goal(), BASELINE, [beaten]) == (
        f"No gain: nothing that kept the quality is as fast as the original; {beaten.label} comes nearest, at 0.29x; "
        "the original stays."
    )


def proof(is_same: bool | None, **known: Any) -> LossProof:
    fields = {"drop": 0.0, "most": 0.001, "grown": 0.0, "allowed": 0.0025, "score": "training loss"}
    return LossProof(is_same=is_same, **{**fields, **known})


def owing(label: str, speedup: float, losses: LossProof | None = None, technique: str = "bf16") -> MeasuredVariant:
    return point(label, speedup=speedup, steps=(Step(technique=technique),), losses=losses)


@pytest.mark.parametrize(
    ("points", "word", "label", "said"),
    [
        ([owing("a", 1.8, proof(True))], "gain", "a", "a: 1.80x"),
        ([owing("a", 1.8, proof(None))], "inconclusive", "original", "is allowed; --budget 8m would be enough"),
        (
            [owing("a", 1.8)],
            "inconclusive",
            "original",
            "no pair of runs for its loss fitted into the budget; --budget",
        ),
        ([owing("a", 1.8, proof(False))], "no-gain", "original", "worse training loss"),
        ([owing("a", 1.8, proof(None, doubt="it diverges"))], "inconclusive", "original", "is open: it diverges. The"),
        (
            [owing("a", 1.8, proof(False)), owing("b", 1.3, technique="fuse_qkv")],
            "gain",
            "b",
            "a is left out: worse training loss",
        ),
        ([owing("a", 1.8), owing("b", 1.3, technique="fuse_qkv")], "gain", "b", "a is left out: no pair of runs"),
    ],
)
def test_what_owes_a_proof_is_kept_once_that_holds(
    points: list[MeasuredVariant], word: str, label: str, said: str
) -> None:
    kind = FakeKind(owed={"bf16": None})
    found = decide(kind, Finals(BASELINE, points, (), len(points)), [trial(0, speedup=1.8)])
    assert (found.word, found.best.label) == (word, label)
    assert said in found.sentence
    assert (found.needed_s is not None) == (word == "inconclusive" and "--budget" in found.sentence)


def test_a_smaller_one_that_is_too_slow_is_named() -> None:
    goal = Goal("memory", max_slowdown=1.3).for_training()
    slow = point("slow", peak_bytes=500_000_000, is_smaller=True, speedup_ci95=(0.735, 0.765))
    kept = point("kept", peak_bytes=900_000_000, is_smaller=True, speedup_ci95=(0.93, 0.97))
    found = decide(FakeKind(goal), Finals(BASELINE, [slow, kept], (), 2), [trial(peak_bytes=1)])
    assert (found.word, found.best.label) == ("gain", "kept")
    assert found.sentence.endswith(
        " slow is left out: it takes 500 MB, but up to 1.36 times the original's time; 1.3 is allowed."
    )
    more = replace(goal, max_slowdown=1.4)
    assert decide(FakeKind(more), Finals(BASELINE, [slow, kept], (), 2), []).best.label == "slow"


def test_an_original_that_takes_more_than_allowed_is_said_to() -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 2_000_000_000})
    goal = Goal("throughput", max_memory_bytes=400_000_000)
    said = verdict.no_gain(goal, baseline, [trial(speedup=1.2)], [point(peak_bytes=900_000_000)])
    assert said.endswith("takes 2.00 GB, more than the 400 MB allowed; --objective memory looks for a smaller one.")
