"""Turn runs, claims and trials into the points of a result, whatever is tuned."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.measure.load import total
from whet.measure.stats import noise_floor
from whet.tuner.budget_plan import MIN_ROUNDS
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant

_OF_TRIAL = ("steps", "label", "number", "quality", "agreement", "training", "stream", "fixed_batch")


def original_point(runs: Sequence[Run], num_samples: float, *, per_call: int = 1, **known: Any) -> MeasuredVariant:
    """Return the original as its runs show it.

    Args:
        runs: At least one.
        num_samples: Samples or tokens of what is timed.
        per_call: How many steps or frames, whose time the point says, one timed call makes.
        known: Fields that its kind knows better.
    """
    seconds = [run.seconds / per_call for run in runs]
    fields: dict[str, Any] = {
        "latency_ms": statistics.median(seconds) * 1e3,
        "throughput_per_s": num_samples / statistics.median(seconds),
        "peak_bytes": round(statistics.median(run.peak_bytes for run in runs)),
        "size_bytes": 0,
        "process_latencies_ms": [one * 1e3 for one in seconds],
        "noise": noise_floor([seconds]) if len(runs) > 1 else 1.0,
        "load": asdict(total(run.load for run in runs)),
    }
    return MeasuredVariant(**fields | known)


def finalist_point(
    record: TrialRecord, claim: Claim, num_samples: float = 1.0, *, per_call: int = 1, **known: Any
) -> MeasuredVariant:
    """Return a trial with what the final comparison measured, at least one pair. See `original_point` for the rest."""
    seconds = statistics.median(claim.new_s) / per_call
    fields: dict[str, Any] = {
        "latency_ms": seconds * 1e3,
        "throughput_per_s": num_samples / seconds,
        "peak_bytes": round(statistics.median(new.peak_bytes for _, new in claim.pairs)),
        "process_latencies_ms": [one * 1e3 / per_call for one in claim.new_s],
        "speedup": claim.ratio or 1.0,
        "speedup_ci95": claim.ci95 or (1.0, 1.0),
        "p_value": claim.p_value,
        "noise": claim.noise,
        "verdict": str(claim.verdict),
        "load": asdict(claim.load),
    }
    return MeasuredVariant(**_of_trial(record) | fields | known)


def screened_point(record: TrialRecord, num_samples: float, **known: Any) -> MeasuredVariant | None:
    """Return a trial outside the finals as a point with its screening figures; None where it was not timed."""
    if record.latency_ms is None or record.speedup is None:
        return None
    fields: dict[str, Any] = {
        "latency_ms": record.latency_ms,
        "beside_ms": record.baseline_latency_ms,
        "throughput_per_s": num_samples * 1e3 / record.latency_ms,
        "peak_bytes": record.peak_bytes or 0,
        "share_of_limit": record.share_of_limit,
        "speedup": record.speedup,
        "speedup_ci95": record.speedup_ci95 or (record.speedup, record.speedup),
        "verdict": "screened",
    }
    return MeasuredVariant(**_of_trial(record) | fields | known)


def _of_trial(record: TrialRecord) -> dict[str, Any]:
    """Return the fields of a point that its trial has too."""
    return {name: getattr(record, name) for name in _OF_TRIAL} | {"size_bytes": record.size_bytes or 0}


def is_smaller(claim: Claim, share: float, original_bytes: float = float("inf")) -> bool:
    """Return whether the peak of each pair of a claim is smaller than the original's.

    Args:
        share: The share of the original's peak that a smaller one stays below.
        original_bytes: What the original needs at most, where its process held more than that.
    """
    peaks = [(min(old.peak_bytes, original_bytes), new.peak_bytes) for old, new in claim.pairs]
    return len(peaks) >= MIN_ROUNDS and all(0 < new < share * old for old, new in peaks)
