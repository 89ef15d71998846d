"""The verdict: what is proved better within the limits, and in a sentence why, or why the original stays."""

import pytest
from fake_results import no_gain as fake_no_gain
from fake_search import applicable

from whet.recipe import Step
from whet.tuner import verdict
from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space

BASELINE = fake_no_gain().baseline


@pytest.mark.parametrize(
    ("objective", "why"),
    [
        ("memory", "needs less memory at its peak than the original"),
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


def test_a_trial_far_slower_is_named_with_its_speed() -> None:
    beaten = TrialRecord(number=0, steps=[], status="done", speedup=0.29)
    assert "comes nearest, at 0.29x" in verdict.no_gain(Goal("latency"), BASELINE, [beaten], beaten=beaten)


def test_a_trial_that_broke_a_limit_in_the_finals_does_not_win() -> None:
    fast = BASELINE.model_copy(update={"label": "fast", "speedup": 3.0, "verdict": "pass", "peak_bytes": 400 << 20})
    assert verdict.choose(Goal("latency"), BASELINE, [fast]) is fast
    goal = Goal("latency", max_memory_bytes=300 << 20)
    assert verdict.choose(goal, BASELINE, [fast]) is BASELINE
    said = verdict.no_gain(goal, BASELINE, [TrialRecord(number=0, steps=[], status="done")], [fast])
    assert "fast is better, but held 400 MiB in the finals, more than allowed" in said
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
    screened = verdict.point_of(record, num_samples=2)
    assert screened is not None
    assert (screened.number, screened.latency_ms, screened.beside_ms) == (7, 50.0, 60.0)
    assert "torch.compile alone 1.20x in the screening;" in verdict.gain(Goal(), BASELINE, best, screened, "accuracy")
    paired = screened.model_copy(update={"verdict": "pass"})
    assert "torch.compile alone 1.20x;" in verdict.gain(Goal(), BASELINE, best, paired, "accuracy")


def test_what_applies_and_was_not_tried_is_named_with_its_reason() -> None:
    bounds = {"openvino": 9.0, "fuse_qkv": 1.3, "keep_precision": 1.0, "channels_last": 4.5}
    space = Space([applicable(name, bounds=[bound]) for name, bound in bounds.items()])
    records = [TrialRecord(number=0, steps=[Step(technique="openvino")], status="done", speedup=4.0)]
    found = verdict.untried(Goal(), space, records)
    assert [entry.technique for entry in found] == ["channels_last", "fuse_qkv", "keep_precision"]
    up, beaten, restores = (entry.reason for entry in found)
    assert "the time was up" in up
    assert "1.30x at most, and 4.00x was reached" in beaten
    assert "gives quality back" in restores
    assert {e.reason for e in verdict.untried(Goal("size"), space, records)} == {up, restores}


def test_a_gain_says_that_its_batch_is_fixed() -> None:
    best = BASELINE.model_copy(update={"label": "fast", "speedup": 3.0, "fixed_batch": 32})
    assert verdict.gain(Goal("latency"), BASELINE, best, None, "accuracy").endswith("; fixed to batch 32.")
    free = best.model_copy(update={"fixed_batch": None})
    assert "batch" not in verdict.gain(Goal("latency"), BASELINE, free, None, "accuracy")
