"""Turn trials and claims into the points of a result."""

from dataclasses import asdict

from whet.comparison.claim import Claim
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.training.finals import MIN_ROUNDS

_SMALLER = 0.97  # of the original's peak, in each pair: what is called smaller


def measured_point(record: TrialRecord, claim: Claim, num_samples: float = 1.0) -> MeasuredVariant:
    """Return a trial with what the final comparison measured.

    Args:
        record: The trial.
        claim: The comparison with the original; at least one pair was measured.
        num_samples: Samples or tokens of a step.
    """
    seconds = sorted(claim.new_s)[len(claim.new_s) // 2]
    peaks = [(old.peak_bytes, new.peak_bytes) for old, new in claim.pairs]
    return MeasuredVariant(
        is_smaller=len(peaks) >= MIN_ROUNDS and all(0 < new < _SMALLER * old for old, new in peaks),
        steps=record.steps,
        label=record.label,
        number=record.number,
        latency_ms=seconds * 1e3,
        throughput_per_s=num_samples / seconds,
        peak_bytes=sorted(new for _, new in peaks)[len(peaks) // 2],
        size_bytes=0,
        process_latencies_ms=[s * 1e3 for s in claim.new_s],
        speedup=claim.ratio or 1.0,
        speedup_ci95=claim.ci95 or (1.0, 1.0),
        p_value=claim.p_value,
        noise=claim.noise,
        verdict=claim.verdict.value,
        load=asdict(claim.load),
        training=record.training,
    )


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
