"""The figures against numpy and plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.core.slo import Slo
from whet.errors import OptionError
from whet.server.load_test.figures import figures_of, percentiles
from whet.server.load_test.record import Failure, Record
from whet.server.load_test.trace import Arrival
from whet.ui.figures import MIN_SAMPLES_FOR_P99

seconds = st.floats(0, 100)


@st.composite
def records(draw: st.DrawFn) -> Record:
    at_s, late_s, gaps = draw(seconds), draw(seconds), draw(st.lists(seconds, min_size=1, max_size=6))
    failure = draw(st.sampled_from(["", "", "", Failure.REFUSED, "HTTP 500", Failure.CUT_SHORT]))
    times = tuple(float(time) for time in at_s + late_s + np.cumsum(gaps))
    num_output = draw(st.integers(len(times), 20))
    arrival = Arrival(at_s, draw(st.integers(1, 99)), draw(st.integers(num_output, 30)))
    is_broken_off = bool(failure) and draw(st.booleans())
    return Record(
        arrival,
        start_s=at_s,
        sent_s=at_s + late_s,
        token_s=() if is_broken_off else times,
        num_output=num_output,
        has_usage=draw(st.booleans()),
        failure=failure,
    )


@given(st.lists(records(), min_size=1, max_size=12))
def test_figures_against_numpy(made: list[Record]) -> None:
    figures = figures_of(made)
    good = [r for r in made if r.failure == ""]
    assert figures.num_requests == len(made)
    assert figures.num_answered == len(good)
    assert sum(figures.failures.values()) == len(made) - len(good)
    assert figures.num_refused == sum(r.failure == "429 refused" for r in made)
    assert figures.output_tokens == sum(r.num_output for r in good)
    assert figures.num_short == sum(r.num_output < r.arrival.num_output for r in good)
    assert figures.num_chunks == sum(len(r.token_s) for r in good)
    assert figures.num_by_chunks == sum(not r.has_usage for r in good)
    assert figures.lateness is not None
    assert figures.lateness.longest_ms == pytest.approx(max(r.sent_s - r.start_s for r in made) * 1e3)
    if not good:
        assert figures.ttft is figures.e2e is figures.output_tokens_per_s is None
        return
    ttft = [r.token_s[0] - r.arrival.at_s for r in good]
    e2e = [r.token_s[-1] - r.arrival.at_s for r in good]
    tpot = [(b - a) / (r.num_output - 1) for a, b, r in zip(ttft, e2e, good, strict=True) if r.num_output > 1]
    gaps = np.concatenate([np.diff(r.token_s) for r in good])
    for found, expected in ((figures.ttft, ttft), (figures.e2e, e2e), (figures.tpot, tpot), (figures.itl, gaps)):
        if not len(expected):
            assert found is None
            continue
        assert found is not None
        assert found.num_samples == len(expected)
        assert found.p50_ms == pytest.approx(np.median(expected) * 1e3)
        assert found.p90_ms == pytest.approx(np.quantile(expected, 0.9) * 1e3)
        assert found.mean_ms == pytest.approx(np.mean(expected) * 1e3)
        assert found.longest_ms == pytest.approx(np.max(expected) * 1e3)
        assert found.p99_ms is None
    duration = max(r.token_s[-1] for r in good) - min(r.arrival.at_s for r in made)
    assert figures.duration_s == pytest.approx(duration)
    if duration:
        assert figures.output_tokens_per_s == pytest.approx(figures.output_tokens / duration)
        assert figures.requests_per_s == pytest.approx(len(good) / duration)


@given(st.lists(records(), min_size=1), st.floats(0.1, 200), st.floats(0.1, 50), st.none() | st.floats(0.1, 300))
def test_goodput_counts_requests_that_meet_every_limit(
    made: list[Record], ttft_s: float, tpot_s: float, e2e_s: float | None
) -> None:
    found = figures_of(made, Slo(ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s)).goodput
    num = 0
    for r in made:
        if r.failure:
            continue
        first, last = r.token_s[0] - r.start_s, r.token_s[-1] - r.start_s
        slow = r.num_output > 1 and (last - first) / (r.num_output - 1) > tpot_s
        num += first <= ttft_s and not slow and (e2e_s is None or last <= e2e_s)
    assert found is not None
    assert found.num_requests == num
    assert found.share == num / len(made)


def test_p99_needs_samples() -> None:
    samples = list(np.random.default_rng(0).exponential(1.0, MIN_SAMPLES_FOR_P99))
    found = percentiles(samples)
    assert found is not None
    assert found.p99_ms == pytest.approx(np.quantile(samples, 0.99) * 1e3)
    fewer = percentiles(samples[1:])
    assert fewer is not None
    assert fewer.p99_ms is None
    assert percentiles([]) is None
    assert percentiles([None]) is None


def test_limits_as_people_write_them() -> None:
    assert Slo.parse("ttft=500ms,tpot=50ms") == Slo(ttft_s=0.5, tpot_s=0.05)
    assert Slo.parse(" E2E = 1.5s ") == Slo(e2e_s=1.5)
    for text in ("", "ttft", "ttft=", "ttft=500", "ttft=0ms", "itl=5ms", "ttft=5ms;tpot=5ms", "ttft=-5ms", "ttft=5h"):
        with pytest.raises(OptionError, match="write limits as ttft=500ms"):
            Slo.parse(text)
    with pytest.raises(OptionError, match="names ttft twice"):
        Slo.parse("ttft=5ms,ttft=6ms")
