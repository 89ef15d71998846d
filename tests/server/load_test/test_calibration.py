"""The capacity found, on servers whose capacity is known."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import TargetError
from whet.server.load_test.calibration import capacity_of, representative
from whet.server.load_test.record import Failure, Record
from whet.server.load_test.trace import Arrival


def served(lengths: list[int], slots: int, step_s: float) -> list[Record]:
    """What a server does with a burst that gives each of `slots` requests a token every step, and refills the slots."""
    free, records = [0.0] * slots, []
    for length in lengths:
        begin_s = heapq.heappop(free)
        times = tuple(begin_s + step_s * (i + 1) for i in range(length))
        heapq.heappush(free, times[-1])
        records.append(Record(Arrival(0.0, 8, length), 0.0, 0.0, times, length, has_usage=True))
    return records


@given(st.lists(st.integers(5, 100), min_size=64, max_size=64), st.sampled_from([4, 8, 16]))
def test_capacity_of_a_server_with_slots(lengths: list[int], slots: int) -> None:
    true_rate = slots / 0.01 / float(np.mean(lengths))
    found = capacity_of(served(lengths, slots, step_s=0.01))
    assert found.requests_per_s == pytest.approx(true_rate, rel=0.15)
    assert found.output_tokens_per_s == pytest.approx(slots / 0.01, rel=0.15)
    assert found.num_requests == 64


def test_chunks_of_several_tokens_count_as_the_tokens_they_hold() -> None:
    single = served([40] * 64, 8, step_s=0.01)
    bundled = [Record(r.arrival, 0.0, 0.0, r.token_s[3::4], 40, has_usage=True) for r in single]
    assert capacity_of(bundled).requests_per_s == pytest.approx(capacity_of(single).requests_per_s, rel=0.05)


def test_refused_requests_do_not_count_and_nothing_answered_is_an_error() -> None:
    refused = [Record(Arrival(0, 1, 1), 0.0, 0.0, failure=Failure.REFUSED, detail="queue is full")] * 10
    some = served([40] * 32, 8, step_s=0.01)
    assert capacity_of([*refused, *some]) == capacity_of(some)
    with pytest.raises(TargetError, match=r"none of 10 requests of the calibration \(429 refused: queue is full\)"):
        capacity_of(refused)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 500)), min_size=1, max_size=300))
def test_a_burst_is_like_what_it_stands_for(lengths: list[tuple[int, int]]) -> None:
    chosen = representative([Arrival(i, *pair) for i, pair in enumerate(lengths)], 64)
    assert len(chosen) == 64
    assert {a.at_s for a in chosen} == {0.0}
    assert {(a.num_input, a.num_output) for a in chosen} <= set(lengths)
    # The distribution of total lengths is the same to within a step of either.
    totals, drawn = sorted(map(sum, lengths)), sorted(a.num_input + a.num_output for a in chosen)
    for total in totals:
        share = np.searchsorted(totals, total, side="right") / len(totals)
        assert abs(np.searchsorted(drawn, total, side="right") / 64 - share) <= 1 / 64 + 1e-9
