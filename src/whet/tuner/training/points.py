"""Turn trials and claims into the points of a result."""

import statistics

from whet.comparison.claim import Claim
from whet.tuner.finals import is_smaller, with_claim
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant

_SMALLER = 0.97  # of the original's peak, in each pair: what is called smaller


def measured_point(record: TrialRecord, claim: Claim, num_samples: float = 1.0) -> MeasuredVariant:
    """Return a trial with what the final comparison measured.

    Args:
        record: The trial.
        claim: The comparison with the original; at least one pair was measured.
        num_samples: Samples or tokens of a step.
    """
    seconds = statistics.median(claim.new_s)
    point = MeasuredVariant(
        is_smaller=is_smaller(claim, _SMALLER),
        steps=record.steps,
        label=record.label,
        number=record.number,
        latency_ms=seconds * 1e3,
        throughput_per_s=num_samples / seconds,
        peak_bytes=round(statistics.median(new.peak_bytes for _, new in claim.pairs)),
        size_bytes=0,
        training=record.training,
    )
    return with_claim(point, claim)


def screened_point(record: TrialRecord, num_samples: float) -> MeasuredVariant:
    """Return a trial that was only screened.

    Args:
        record: The trial.
        num_samples: Samples or tokens of a step.
    """
    seconds = (record.latency_ms or 0.0) / 1e3
    return MeasuredVariant(
        steps=record.steps,
        label=record.label,
        number=record.number,
        latency_ms=record.latency_ms or 0.0,
        beside_ms=record.baseline_latency_ms,
        throughput_per_s=num_samples / seconds if seconds else 0.0,
        peak_bytes=record.peak_bytes or 0,
        size_bytes=0,
        speedup=record.speedup or 1.0,
        speedup_ci95=(record.speedup or 1.0, record.speedup or 1.0),
        verdict="screened",
        training=record.training,
    )
