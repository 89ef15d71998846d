"""Compute the latencies and rates that users of a server would see, from the records of a replay."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.core.slo import Slo
from whet.server.load_test.record import Failure, Record
from whet.ui.figures import MIN_SAMPLES_FOR_P99


@dataclass(frozen=True)
class Percentiles:
    """Hold percentiles of all samples, in milliseconds. p99_ms is None below 500 samples."""

    p50_ms: float
    p90_ms: float
    p99_ms: float | None
    mean_ms: float
    longest_ms: float
    num_samples: int


@dataclass(frozen=True)
class Goodput:
    """Count the requests that met every limit. `share` (0 to 1) is of all that were sent, including failed ones."""

    share: float
    requests_per_s: float
    num_requests: int


@dataclass(frozen=True)
class Figures:
    """Summarise a replay. Latencies and tokens are those of answered requests. None means that there is no data.

    Attributes:
        num_requests: Requests that were sent.
        duration_s: Seconds from the first request's planned time to the last token.
        ttft: Time to the first token.
        tpot: Time per output token after the first.
        itl: Time between two successive chunks of an answer.
        e2e: Time to the last token.
        lateness: Time from a request's planned time to when the generator sent it.
        requests_per_s: Answered requests per second.
        goodput: Requests within all limits; None without limits.
        failures: The number of failed requests by kind.
        failure_details: The message of the first failure of each kind.
        num_refused: Requests that were refused with status 429. They are also in `failures`.
        num_short: Requests answered with fewer tokens than asked for.
        num_by_chunks: Answers whose chunks were counted as tokens, since the server gave no usage.
    """

    num_requests: int
    num_answered: int
    duration_s: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    lateness: Percentiles | None
    requests_per_s: float | None
    input_tokens: int
    output_tokens: int
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    goodput: Goodput | None
    failures: dict[str, int]
    failure_details: dict[str, str]
    num_refused: int
    num_short: int
    num_by_chunks: int
    num_chunks: int


def figures_of(records: Sequence[Record], slo: Slo | None = None) -> Figures:
    answered = [record for record in records if record.is_answered and record.token_s]
    failures = Counter(record.failure for record in records if record.failure)
    duration_s = _duration_s(records, answered)
    input_tokens = sum(record.arrival.num_input for record in answered)
    output_tokens = sum(record.num_output for record in answered)

    def rate(count: int) -> float | None:
        return count / duration_s if duration_s > 0 else None

    return Figures(
        num_requests=len(records),
        num_answered=len(answered),
        duration_s=duration_s,
        ttft=percentiles([record.ttft_s for record in answered]),
        tpot=percentiles([record.tpot_s for record in answered]),
        itl=percentiles([gap_s for record in answered for gap_s in record.inter_token_s]),
        e2e=percentiles([record.e2e_s for record in answered]),
        lateness=percentiles([record.lateness_s for record in records]),
        requests_per_s=rate(len(answered)),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        input_tokens_per_s=rate(input_tokens),
        output_tokens_per_s=rate(output_tokens),
        goodput=_goodput(records, slo, duration_s),
        failures=dict(failures.most_common()),
        failure_details=_details(records),
        num_refused=failures[Failure.REFUSED],
        num_short=sum(record.num_output < record.arrival.num_output for record in answered),
        num_by_chunks=sum(not record.has_usage for record in answered),
        num_chunks=sum(len(record.token_s) for record in answered),
    )


def percentiles(samples_s: Sequence[float | None]) -> Percentiles | None:
    """Return percentiles in ms of times in s, interpolated linearly. Nones do not count; without times, None."""
    known = np.asarray([sample for sample in samples_s if sample is not None], dtype=float) * 1e3
    if not known.size:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(known, (50, 90, 99)))
    return Percentiles(
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99 if known.size >= MIN_SAMPLES_FOR_P99 else None,
        mean_ms=float(known.mean()),
        longest_ms=float(known.max()),
        num_samples=int(known.size),
    )


def _duration_s(records: Sequence[Record], answered: Sequence[Record]) -> float:
    if not answered:
        return 0.0
    return max(record.token_s[-1] for record in answered) - min(record.start_s for record in records)


def _goodput(records: Sequence[Record], slo: Slo | None, duration_s: float) -> Goodput | None:
    if slo is None or not records:
        return None
    num = sum(_meets(record, slo) for record in records)
    return Goodput(num / len(records), num / duration_s if duration_s > 0 else 0.0, num)


def _meets(record: Record, slo: Slo) -> bool:
    if not record.is_answered or record.e2e_s is None:
        return False
    return slo.is_met(ttft_s=record.ttft_s, tpot_s=record.tpot_s, e2e_s=record.e2e_s)


def _details(records: Sequence[Record]) -> dict[str, str]:
    details: dict[str, str] = {}
    for record in records:
        if record.failure and record.detail:
            details.setdefault(record.failure, record.detail)
    return details
