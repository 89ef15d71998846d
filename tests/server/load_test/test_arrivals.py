"""Random arrivals against the distribution they are drawn from; scaled traces against what scaling must keep."""

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.server.load_test.arrivals import (
    at_rate,
    at_time_scale,
    fit_lengths,
    fitting_scale,
    offered_rate,
    poisson,
)
from whet.server.load_test.trace import Arrival

requests = st.lists(st.builds(Arrival, st.floats(0, 1e6), st.integers(1, 10**5), st.integers(1, 10**5)), min_size=1)


def test_gaps_are_exponential_and_lengths_uniform() -> None:
    drawn = poisson(5.0, num_requests=4000, duration_s=None, input_len=(10, 14), output_len=(1, 1), seed=3)
    times = np.array([0.0, *(arrival.at_s for arrival in drawn)])
    assert scipy.stats.kstest(np.diff(times), scipy.stats.expon(scale=0.2).cdf).pvalue > 0.01
    counts = np.bincount([arrival.num_input for arrival in drawn], minlength=15)
    assert counts[:10].sum() == 0
    assert scipy.stats.chisquare(counts[10:15]).pvalue > 0.01
    assert {arrival.num_output for arrival in drawn} == {1}


def test_as_many_as_asked_for_or_as_come_in_the_time() -> None:
    ranges = {"input_len": (1, 2), "output_len": (1, 2)}
    assert len(poisson(10, num_requests=7, duration_s=None, **ranges)) == 7
    drawn = poisson(10, num_requests=None, duration_s=20, **ranges)
    assert 150 < len(drawn) < 250
    assert drawn[-1].at_s < 20
    assert drawn == poisson(10, num_requests=None, duration_s=20, **ranges)
    assert drawn != poisson(10, num_requests=None, duration_s=20, seed=1, **ranges)
    assert drawn[:5] == poisson(10, num_requests=5, duration_s=20, **ranges)
    with pytest.raises(OptionError, match="no request arrives within"):
        poisson(1e-6, num_requests=None, duration_s=1, **ranges)


@given(requests, st.integers(2, 10**5))
def test_the_longest_fits_and_nothing_is_cut(arrivals: list[Arrival], max_model_len: int) -> None:
    scale = fitting_scale(arrivals, max_model_len)
    fitted = fit_lengths(arrivals, scale, max_model_len=max_model_len)
    assert 0 < scale <= 1
    assert fitted.num_cut == 0
    assert all(a.num_input >= 1 and a.num_output >= 1 for a in fitted.arrivals)
    assert all(a.num_input + a.num_output <= max_model_len for a in fitted.arrivals)
    assert [a.at_s for a in fitted.arrivals] == [a.at_s for a in arrivals]
    for before, after in zip(arrivals, fitted.arrivals, strict=True):
        assert after.num_input <= max(1, before.num_input * scale + 1e-6)
        assert after.num_input > before.num_input * scale - 1
    if scale == 1:
        assert fitted.arrivals == arrivals


@given(requests, st.floats(0.001, 10), st.integers(1, 100), st.integers(1, 100), st.integers(2, 150))
def test_limits_hold_and_what_they_cut_is_counted(
    arrivals: list[Arrival], scale: float, max_input: int, max_output: int, max_model_len: int
) -> None:
    limits = {"max_input": max_input, "max_output": max_output, "max_model_len": max_model_len}
    free = fit_lengths(arrivals, scale)
    fitted = fit_lengths(arrivals, scale, **limits)
    assert free.num_cut == 0
    assert all(1 <= a.num_input <= max_input and 1 <= a.num_output <= max_output for a in fitted.arrivals)
    assert all(a.num_input + a.num_output <= max_model_len for a in fitted.arrivals)
    assert fitted.num_cut == sum(a != b for a, b in zip(free.arrivals, fitted.arrivals, strict=True))


def test_a_model_without_room() -> None:
    with pytest.raises(OptionError, match="takes 1 token"):
        fit_lengths([Arrival(0, 1, 1)], max_model_len=1)


def bursty(num: int) -> list[Arrival]:
    times = np.cumsum(np.random.default_rng(0).pareto(1.5, num))
    return [Arrival(float(at_s), 5, 5) for at_s in times]


@given(st.integers(2, 60), st.floats(0.01, 100))
def test_a_trace_at_a_rate_keeps_the_shape_of_its_gaps(num: int, rate: float) -> None:
    trace = bursty(80)
    chosen, time_scale = at_rate(trace, rate, num_requests=num, duration_s=None)
    assert len(chosen) == num
    assert chosen[0].at_s == 0
    assert offered_rate(chosen) == pytest.approx(rate)
    gaps, original = (np.diff([a.at_s for a in arrivals]) for arrivals in (chosen, trace[:num]))
    assert gaps == pytest.approx(original * time_scale)


def test_a_duration_says_how_many() -> None:
    chosen, _ = at_rate(bursty(80), 2.0, num_requests=None, duration_s=10)
    assert len(chosen) == 21
    assert chosen[-1].at_s == pytest.approx(10)
    assert len(at_rate(bursty(80), 2.0, num_requests=5, duration_s=10)[0]) == 5
    assert len(at_rate(bursty(80), 2.0, num_requests=None, duration_s=1e6)[0]) == 80
    trace = [Arrival(10.0 + at_s, 1, 1) for at_s in range(6)]
    assert [a.at_s for a in at_time_scale(trace, 2.0, num_requests=None, duration_s=7)] == [0, 2, 4, 6]
    assert [a.at_s for a in at_time_scale(trace, 0.5, num_requests=3, duration_s=None)] == [0, 0.5, 1]


def test_what_has_no_rate() -> None:
    with pytest.raises(OptionError, match="one request has no rate"):
        at_rate(bursty(80), 1.0, num_requests=1, duration_s=None)
    with pytest.raises(OptionError, match="all arrive at once"):
        at_rate([Arrival(1.0, 1, 1)] * 3, 1.0, num_requests=None, duration_s=None)
