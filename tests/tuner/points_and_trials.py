"""Points of a result and trials, each with what a test says of it."""

from typing import Any

from fake_results import no_gain as fake_no_gain

from whet.core.recipe import Step
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant

THIN = {"verdict": "inconclusive", "process_latencies_ms": [1.0] * 5}
BASELINE = fake_no_gain().baseline


def point(label: str = "x", **known: Any) -> MeasuredVariant:
    return BASELINE.model_copy(
        update={"label": label, "verdict": "pass", "number": 0, "steps": (Step(technique="bf16"),), **known}
    )


def trial(number: int = 0, status: str = "done", **known: Any) -> TrialRecord:
    return TrialRecord.model_validate({"number": number, "steps": [], "status": status, **known})
