"""The verdict: what is proved better within the limits, and in a sentence why, or why the original stays."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fake_search
import pytest
from fake_kind import FakeKind, work
from fake_results import no_gain as fake_no_gain
from fake_search import applicable

from whet.comparison.claim import Claim, Verdict
from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.profiling.model import Profile
from whet.techniques.proof.loss_proof import LossProof
from whet.tuner import verdict
from whet.tuner.finals import Finals, is_smaller
from whet.tuner.goal import Goal
from whet.tuner.improvement import improves
from whet.tuner.model_points import gain_sentence, screened_original, screened_point
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.space import Space
from whet.tuner.untried import STOPPED, out_of_reach, untried
from whet.tuner.verdict import decide

BASELINE = fake_no_gain().baseline


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


def test_a_screened_figure_is_called_one() -> None:
    best = BASELINE.model_copy(update={"label": "best", "speedup": 3.0, "verdict": "pass"})
    record = TrialRecord(
        number=7,
        steps=[Step(technique="inductor")],
        status="done",
        speedup=1.2,
        speedup_ci95=(1.1, 1.3),
        latency_ms=50.0,
        baseline_latency_ms=60.0,
    )
    screened = screened_point(record, num_samples=2)
    assert screened is not None
    assert (screened.number, screened.latency_ms, screened.beside_ms) == (7, 50.0, 60.0)
    assert "torch.compile alone 1.20x in the screening;" in gain_sentence(Goal(), BASELINE, best, screened, "accuracy")
    paired = screened.model_copy(update={"verdict": "pass"})
    assert "torch.compile alone 1.20x;" in gain_sentence(Goal(), BASELINE, best, paired, "accuracy")


def test_what_applies_and_was_not_tried_is_named_with_its_reason() -> None:
    bounds = {"openvino": 9.0, "fuse_qkv": 1.3, "keep_precision": 1.0, "channels_last": 4.5}
    space = Space([applicable(name, bounds=[bound]) for name, bound in bounds.items()])
    records = [TrialRecord(number=0, steps=[Step(technique="openvino")], status="done", speedup=4.0)]
    found = untried(Goal(), space, records)
    assert [entry.technique for entry in found] == ["channels_last", "fuse_qkv", "keep_precision"]
    up, beaten, restores = (entry.reason for entry in found)
    assert "the time was up" in up
    assert "1.30x at most, and 4.00x was reached" in beaten
    assert "gives quality back" in restores
    assert {e.reason for e in untried(Goal("size"), space, records)} == {up, restores}
    searched = Space([applicable("openvino", bounds=[9.0])])
    first = untried(Goal(), space, [], searched)[1]
    assert first.reason == "by itself it could gain 4.50x at most, which a trial could not tell from noise"


def test_a_gain_says_that_its_batch_is_fixed() -> None:
    best = BASELINE.model_copy(update={"label": "fast", "speedup": 3.0, "fixed_batch": 32})
    assert gain_sentence(Goal("latency"), BASELINE, best, None, "accuracy").endswith("; fixed to batch 32.")
    free = best.model_copy(update={"fixed_batch": None})
    assert "batch" not in gain_sentence(Goal("latency"), BASELINE, free, None, "accuracy")


def point(label: str = "x", **known: Any) -> MeasuredVariant:
    return BASELINE.model_copy(
        update={"label": label, "verdict": "pass", "number": 0, "steps": (Step(technique="bf16"),), **known}
    )


def trial(number: int = 0, status: str = "done", **known: Any) -> TrialRecord:
    return TrialRecord.model_validate({"number": number, "steps": [], "status": status, **known})


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


@pytest.mark.parametrize(
    ("num_bytes", "is_better"), [(500, True), (989, True), (990, False), (1000, False), (2000, False)]
)
def test_smaller_by_less_than_a_percent_is_not_smaller(num_bytes: int, is_better: bool) -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 1000, "size_bytes": 1000})
    assert improves(Goal("size"), baseline, point(peak_bytes=1, size_bytes=num_bytes)) is is_better
    pairs = tuple((Run(seconds=1.0, peak_bytes=1000), Run(seconds=1.0, peak_bytes=num_bytes)) for _ in range(6))
    claim = Claim(verdict=Verdict.FAIL, pairs=pairs)
    assert is_smaller(claim, 0.99) is is_better
    assert not is_smaller(Claim(verdict=Verdict.FAIL, pairs=pairs[:5]), 0.99), "too few pairs"
    assert is_smaller(claim, 0.99, original_bytes=600) is (num_bytes == 500)


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


THIN = {"verdict": "inconclusive", "process_latencies_ms": [1.0] * 5}


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


def test_a_gain_in_a_sentence() -> None:
    baseline = BASELINE.model_copy(update={"peak_bytes": 600, "size_bytes": 900, "quality": 0.5})
    best = point("best", speedup=3.0, speedup_ci95=(2.5, 3.5), peak_bytes=400, size_bytes=300, quality=None)
    fast = "best is 3.00x as fast as the original (95% interval 2.50 to 3.50)"
    assert gain_sentence(Goal(), baseline, best, None, "accuracy") == f"{fast}."
    assert gain_sentence(Goal(), baseline, best, best, "accuracy") == f"{fast}."
    memory = gain_sentence(Goal("memory"), baseline, best, None, "accuracy")
    assert memory == f"{fast} and holds 1.50x less memory at its peak."
    unfair = gain_sentence(Goal("memory"), baseline, best, None, "accuracy", is_fair=False)
    assert unfair.startswith(f"{fast} and holds 1.50x less memory at its peak (the original's memory holds what its")
    assert "its own code" not in gain_sentence(Goal(), baseline, best, None, "accuracy", is_fair=False)
    assert gain_sentence(Goal("size"), baseline, best, None, "accuracy") == f"{fast} and is 3.00x smaller on disk."


def test_a_gain_tells_the_quality_before_and_after() -> None:
    best = point("best", speedup=3.0, quality=0.4)
    scored = BASELINE.model_copy(update={"quality": 0.5})
    said = gain_sentence(Goal(), scored, best, None, "accuracy")
    assert "; accuracy: 0.5 before, 0.4 after (scored as one number" in said
    unscored = BASELINE.model_copy(update={"quality": None})
    assert gain_sentence(Goal(), unscored, best, None, "nearness").endswith("; nearness: 0.4 after.")


def test_a_gain_that_cannot_be_saved_says_so() -> None:
    in_process = point("best", speedup=3.0, steps=(Step(technique="torch_compile"),))
    assert ". It cannot be saved: torch.compile makes it anew" in gain_sentence(Goal(), BASELINE, in_process, None, "q")
    assert "cannot be saved" not in gain_sentence(Goal(), BASELINE, point("best"), None, "q")


def test_the_original_without_finals_has_the_median_of_the_screenings() -> None:
    facts = fake_search.facts(call_s=0.02, num_samples=8)
    records = [trial(i, baseline_latency_ms=ms) for i, ms in enumerate([1.0, 3.0, 40.0, None])]
    original = screened_original(facts, records)
    assert (original.latency_ms, original.throughput_per_s) == (3.0, pytest.approx(8 / 0.003))
    assert (original.size_bytes, original.quality, original.verdict, original.peak_bytes) == (1000, 1.0, "screened", 0)


def test_the_original_without_any_trial_has_the_profiles_mean_over_its_batches() -> None:
    """Two batches of 20 ms and one of 50 ms."""
    profiles = [(Profile(total_s=s, layers=(), dtype="float32"), count) for s, count in ((0.02, 2), (0.05, 1))]
    original = screened_original(fake_search.facts(profiles=profiles), [trial()])
    assert original.latency_ms == pytest.approx(30.0)


SPACE = [applicable("bf16", bounds=[4.0])]


def open_words(
    records: Sequence[TrialRecord],
    points: Sequence[MeasuredVariant] = (),
    objective: Any = "latency",
    space: Any = SPACE,
) -> str | None:
    """What was seen where the time was up; None where more time would not change the verdict."""
    return verdict.unfinished(FakeKind(Goal(objective), applicable=space), records, points)


def test_it_is_open_as_long_as_no_trial_was_measured() -> None:
    stopped = trial(status="stopped", reason="was stopped")
    failed = [trial(1, "failed", reason="crash"), trial(2, "refused", reason="no graph")]
    for records in ([stopped], [stopped, stopped], [*failed, stopped]):
        assert open_words(records) == f"{stopped.label} was stopped"
        assert open_words(records, space=[]) is None
    assert open_words([]) == "no technique was tried"
    assert open_words([stopped, trial(1, "rejected")]) is None
    assert open_words(failed) is None, "that is the verdict failed"


def test_it_is_open_until_the_finals_have_judged_the_best_trial() -> None:
    worse, best = trial(0, speedup=2.0), trial(1, speedup=3.0)
    seen = f"in the screening, {best.label} was 3.00x as fast as the original, which proves nothing"
    assert open_words([worse, best]) == seen
    assert open_words([worse, best], [point(number=0)]) == seen
    assert open_words([worse, best], [point(number=0), point(number=1)]) is None
    assert open_words([trial(0, speedup=0.8, speedup_ci95=(0.7, 0.85))]) is None, "nobody needs proof of that"
    thin = point(number=1, **THIN, speedup=1.2, speedup_ci95=(0.9, 1.6))
    told = "in 5 pairs of the finals, x showed 1.20x (0.90–1.60), which does not tell"
    assert open_words([worse, best], [thin]) == told
    assert open_words([worse, best], [thin.model_copy(update={"process_latencies_ms": [1.0] * 7})]) is not None
    whole = thin.model_copy(update={"process_latencies_ms": [1.0] * 8})
    assert open_words([worse, best], [whole]) is None, "all pairs were made: nothing is proved"
    assert open_words([worse, best], [thin.model_copy(update={"verdict": "fail"})]) is None
    sized = best.model_copy(update={"size_bytes": 1})
    assert open_words([sized], [thin], "size") is None, "a size needs no rounds"
    small = best.model_copy(update={"peak_bytes": 10})
    assert open_words([small], [thin], "memory") is not None, "memory needs six pairs"
    assert open_words([small], [thin.model_copy(update={"process_latencies_ms": [1.0] * 6})], "memory") is None


def test_what_is_said_where_the_time_was_up() -> None:
    best = trial(0, speedup=2.5)
    found = decide(FakeKind(), Finals(BASELINE, []), [best])
    seen = f"in the screening, {best.label} was 2.50x as fast as the original, which proves nothing"
    assert (found.word, found.needed_s, found.best) == ("inconclusive", 480.0, BASELINE)
    assert found.sentence == (
        f"Inconclusive: the time was up before anything was proved; {seen}. The original stays. "
        "--budget 8m would be enough."
    )


def test_finals_that_measured_no_variant_are_no_result() -> None:
    found = decide(FakeKind(), Finals(BASELINE, [], ("x: it crashed",), 1), [trial(0, speedup=2.5)])
    assert (found.word, found.needed_s) == ("inconclusive", None)
    assert "the finals failed (x: it crashed), so nothing was compared. The original stays." in found.sentence


def test_a_trial_that_failed_in_the_finals_is_named_beside_the_verdict() -> None:
    best, second = trial(0, speedup=2.5), trial(1, speedup=1.2)
    slow = point("second", number=1, verdict="fail", speedup=0.9, process_latencies_ms=[1.0] * 8)
    found = decide(FakeKind(), Finals(BASELINE, [slow], ("best: it crashed",), 2, frozenset({0})), [best, second])
    assert (found.word, found.needed_s) == ("no-gain", None)
    assert found.sentence.endswith("the original stays. In the finals failed best: it crashed.")
    thin = slow.model_copy(update={"verdict": "inconclusive", "process_latencies_ms": [1.0] * 6})
    open_ = decide(FakeKind(), Finals(BASELINE, [thin], ("best: it crashed",), 2, frozenset({0})), [best, second])
    assert (open_.word, open_.needed_s) == ("inconclusive", 480.0)
    assert "second showed 0.90x" in open_.sentence and "failed best: it crashed" in open_.sentence


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


def test_a_stopped_trial_tried_nothing() -> None:
    space = Space(
        [
            applicable("bf16", options={"keep": [0, 1]}, bounds=[2.0, 5.0]),
            applicable("fuse_qkv"),
            applicable("openvino", bounds=[3.0]),
        ]
    )
    steps = {name: [Step(technique=name)] for name in ("bf16", "openvino")}
    records = [
        trial(0, "stopped", steps=steps["bf16"]),
        trial(1, "stopped", steps=steps["openvino"]),
        trial(2, "failed", steps=steps["openvino"], speedup=9.0),
    ]
    found = untried(Goal(), space, records)
    assert [(entry.technique, entry.bound) for entry in found] == [("bf16", 5.0), ("fuse_qkv", 1.0)]
    stopped, beaten = (entry.reason for entry in found)
    assert stopped == STOPPED
    assert beaten == "by itself it could gain 1.00x at most, and 1.00x was reached without it"
    assert out_of_reach(found) == 1
    assert out_of_reach(untried(Goal("size"), space, [])) == 3


def test_what_nothing_else_beats() -> None:
    def at(number: int, speedup: float, size: int, drop: float, status: str = "done") -> TrialRecord:
        return trial(number, status, speedup=speedup, size_bytes=size, drop=drop)

    records = [
        at(0, 2.0, 100, 0.0),
        at(1, 3.0, 200, 0.0),  # faster, larger
        at(2, 2.0, 100, 0.01),  # worse in quality alone
        at(3, 1.9, 100, 0.0),  # slower alone
        at(4, 2.0, 101, 0.0),  # larger alone
        at(5, 1.0, 50, 0.5, "rejected"),  # the smallest
        at(6, 9.0, 10, 0.0, "failed"),
        trial(7, speedup=9.0, size_bytes=10),  # of unknown quality
        trial(8, speedup=9.0, drop=0.0),
        at(9, 2.0, 100, 0.0),  # equals do not beat each other
    ]
    assert verdict.pareto(records) == [0, 1, 5, 9]


def test_a_trial_becomes_a_point_with_all_its_figures() -> None:
    record = trial(
        3,
        steps=[Step(technique="bf16")],
        latency_ms=4.0,
        baseline_latency_ms=8.0,
        speedup=2.0,
        speedup_ci95=(1.9, 2.1),
        size_bytes=70,
        peak_bytes=80,
        quality=0.9,
        share_of_limit=0.25,
        fixed_batch=16,
    )
    found = screened_point(record, num_samples=32)
    assert found == MeasuredVariant(
        steps=record.steps,
        label=record.label,
        number=3,
        latency_ms=4.0,
        beside_ms=8.0,
        throughput_per_s=8000.0,
        size_bytes=70,
        peak_bytes=80,
        quality=0.9,
        share_of_limit=0.25,
        speedup=2.0,
        speedup_ci95=(1.9, 2.1),
        fixed_batch=16,
        verdict="screened",
    )
    assert all(
        screened_point(record.model_copy(update={name: None}), 1) is None
        for name in ("latency_ms", "speedup", "speedup_ci95")
    )
    bare = screened_point(record.model_copy(update={"peak_bytes": None, "size_bytes": None}), 1)
    assert bare is not None
    assert (bare.peak_bytes, bare.size_bytes) == (0, 0)
