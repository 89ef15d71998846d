"""The verdict's sentence where the original stays: why, for what was asked for."""

import pytest
from fake_results import no_gain as fake_no_gain

from whet.tuner import verdict
from whet.tuner.result import TrialRecord
from whet.tuner.search import Goal

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
    assert "comes nearest, at 0.29x" in verdict.no_gain(Goal("latency"), BASELINE, [beaten], beaten)
