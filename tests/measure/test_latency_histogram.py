"""Percentiles against NumPy's over the raw times; what is merged or sent counts as what was added."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.latency_histogram import LatencyHistogram

TIMES = st.lists(st.floats(2e-6, 1e4), min_size=1, max_size=200)


def histogram_of(times: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for seconds in times:
        histogram.add(seconds)
    return histogram


@given(TIMES, st.sampled_from([0, 10, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_percent_of_the_raw_one(times: list[float], percent: float) -> None:
    found = histogram_of(times).percentile_s(percent)
    lower, upper = (np.percentile(times, percent, method=m) for m in ("lower", "higher"))
    assert found is not None
    assert lower / 1.0101 <= found <= upper * 1.0101


@given(TIMES, TIMES)
def test_merged_is_as_if_added_to_one(first: list[float], second: list[float]) -> None:
    merged, both = histogram_of(first), histogram_of(first + second)
    merged.merge(histogram_of(second))
    assert (merged.count, merged.longest_s, merged.shortest_s) == (both.count, both.longest_s, both.shortest_s)
    assert merged.total_s == pytest.approx(both.total_s)
    assert [merged.percentile_s(p) for p in (5, 50, 95)] == [both.percentile_s(p) for p in (5, 50, 95)]


@given(TIMES)
def test_json_and_back(times: list[float]) -> None:
    histogram = histogram_of(times)
    sent = json.loads(json.dumps(histogram.to_json()))
    back = LatencyHistogram.from_counts({int(k): n for k, n in sent.pop("counts").items()}, **sent)
    assert vars(back) == vars(histogram)


def test_memory_stays_bounded() -> None:
    histogram = histogram_of(list(np.geomspace(1e-9, 1e9, 50_000)))
    assert histogram.count == 50_000
    assert len(histogram.to_json()["counts"]) <= 1201  # type: ignore[arg-type]


def test_how_many_took_at_most_so_long() -> None:
    assert histogram_of([0.001, 0.02, 0.02, 3.0]).cumulative((0.01, 0.1, 10.0)) == [1, 3, 4]


def test_nothing_counted_has_no_percentile() -> None:
    assert LatencyHistogram().percentile_s(50) is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_no_negative_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        LatencyHistogram().add(seconds)


def test_buckets_that_are_none_are_refused() -> None:
    for counts in ({5000: 1}, {-1: 1}, {3: 0}):
        with pytest.raises(ValueError, match="no such bucket"):
            LatencyHistogram.from_counts(counts, 1.0, 1.0, 1.0)
