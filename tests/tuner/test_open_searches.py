"""A search that has not come to its end: what is open, what is untried, and why."""

from collections.abc import Sequence
from typing import Any

from fake_kind import FakeKind
from fake_search import applicable
from points_and_trials import BASELINE, THIN, point, trial

from whet.core.recipe import Step
from whet.tuner import verdict
from whet.tuner.finals import Finals
from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.space import Space
from whet.tuner.untried import STOPPED, out_of_reach, untried
from whet.tuner.verdict import decide


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
