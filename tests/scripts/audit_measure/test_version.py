"""A process of a script as a run: which steps count, what disturbed them, and a comparison of two versions."""

from collections.abc import Callable, Sequence

import pytest

from whet.comparison.claim import Claim, Verdict
from whet.comparison.compare import compare
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import UntilClear
from whet.measure.evidence import Losses
from whet.measure.isolate import Failure, FailureKind, Outcome
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.scripts.audit_measure.version import ScriptVersion, middle, run_of


def outcome(step_s: float, losses: Sequence[float | None] = (2.0, 1.0)) -> Outcome:
    value = {
        "seconds": [9.0, 9.0, 9.0, step_s, step_s, step_s],
        "losses": list(losses),
        "report": {"step_ms": step_s * 1e3},
        "peak_bytes": 100,
        "cuda_peak_bytes": None,
    }
    return Outcome(value, None, 1.0, 0)


def failed(message: str) -> Outcome:
    return Outcome(None, Failure(FailureKind.ERROR, message), 1.0, 0)


def busy_outcome(step_s: float, *, disturbed: bool) -> Outcome:
    """Twelve steps in four blocks; another process made those in three of the blocks ten times slower."""
    found = outcome(step_s)
    assert found.value is not None
    load = {"seconds": 1.0, "cores": 2, "foreign_s": 1.0, "waited_s": 0.8}
    blocks = [{"num_steps": 3, "load": load if disturbed and i else {"seconds": 1.0, "cores": 2}} for i in range(4)]
    seconds = [step_s * (10 if disturbed and i >= 3 else 1) for i in range(12)]
    return Outcome({**found.value, "seconds": seconds, "blocks": blocks}, None, 1.0, 0)


def screened(old: Callable[[], Outcome], new: Callable[[], Outcome], patience: QuietWait | None = None) -> Claim:
    sides = ScriptVersion("old", old), ScriptVersion("new", new)
    return compare(*sides, schedule=ABBA(), stop=UntilClear(), patience=patience)


def test_the_first_steps_are_not_counted() -> None:
    run = run_of(outcome(0.5))
    assert (run.seconds, run.num_calls, run.peak_bytes) == (0.5, 3, 100)
    assert run.evidence == Losses(by_step=(2.0, 1.0))
    assert run.details["report"] == {"step_ms": 500.0}


def test_a_failure_is_a_run_that_says_so() -> None:
    run = run_of(failed("ValueError: no"))
    assert (run.failure, run.counts) == ("ValueError: no", False)


def test_disturbed_steps_do_not_count() -> None:
    found = busy_outcome(0.5, disturbed=True)
    assert found.value is not None
    found.value["blocks"][2]["load"] = found.value["blocks"][3]["load"] = {"seconds": 1.0, "cores": 2}
    found.value["seconds"][6:] = [0.5] * 6
    run = run_of(found)
    assert (run.seconds, run.busy) == (0.5, "")
    assert run.load.foreign_s == 1.0


def test_a_run_with_too_few_quiet_steps_says_what_disturbed_it() -> None:
    assert run_of(busy_outcome(0.5, disturbed=True)).busy.startswith("other processes used")


def test_a_clear_gain_ends_it_after_three_pairs() -> None:
    times = iter([1.0, 1.02, 0.98])
    claim = screened(lambda: outcome(next(times)), lambda: outcome(0.5))
    assert (claim.verdict, claim.num_pairs) == (Verdict.PASS, 3)
    assert claim.ratio == pytest.approx(2.0, rel=0.05)
    assert claim.agreement is not None
    assert claim.agreement.is_same


def test_a_machine_that_is_busy_gives_no_gain() -> None:
    claim = screened(
        lambda: busy_outcome(1.0, disturbed=False),
        lambda: busy_outcome(0.5, disturbed=True),
        QuietWait("inconclusive"),
    )
    assert (claim.verdict, claim.ratio) == (Verdict.INCONCLUSIVE, None)
    assert "other processes used" in claim.busy


def test_a_process_that_was_disturbed_is_run_again() -> None:
    left = iter([True, False, False, False, False, False])
    claim = screened(
        lambda: busy_outcome(1.0, disturbed=False),
        lambda: busy_outcome(0.5, disturbed=next(left)),
        QuietWait("wait", 10.0, glance=lambda seconds: (Load(seconds, 2), "")),
    )
    assert claim.verdict is Verdict.PASS
    assert claim.ratio == pytest.approx(2.0)


def test_the_middle_run_is_the_median() -> None:
    assert middle([run_of(outcome(step_s)) for step_s in (3.0, 1.0, 2.0)]).seconds == 2.0
