"""Plan the requests, with their times and lengths: a trace scaled to the server, or random arrivals at a rate."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.errors import OptionError
from whet.server.load_test.trace import Arrival

_MAX_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Fitted:
    """Hold requests whose lengths fit a server. `num_cut` were still too long after scaling, and were cut."""

    arrivals: list[Arrival]
    num_cut: int


def poisson(
    rate: float,
    *,
    num_requests: int | None,
    duration_s: float | None,
    input_len: tuple[int, int],
    output_len: tuple[int, int],
    seed: int = 0,
) -> list[Arrival]:
    """Draw the arrivals of a Poisson process. The gaps have an exponential distribution of mean 1 / rate seconds.

    Args:
        num_requests: The most requests; None for no limit.
        duration_s: No request arrives after so many seconds; None for no limit. At least one limit is needed.
        input_len: The range of prompt lengths in tokens, ends included. Lengths are drawn uniformly.

    Raises:
        OptionError: No request arrives in that time, or more than a million.
    """
    if num_requests is None and duration_s is None:
        raise ValueError("num_requests or duration_s is needed: a Poisson process does not end")
    random = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    at_s = 0.0
    while num_requests is None or len(arrivals) < num_requests:
        at_s += float(random.exponential(1 / rate))
        if duration_s is not None and at_s >= duration_s:
            break
        if len(arrivals) >= _MAX_REQUESTS:
            raise OptionError(f"--rate {rate:g} makes more than {_MAX_REQUESTS:,} requests; give fewer, or less time")
        lengths = [int(random.integers(low, high, endpoint=True)) for low, high in (input_len, output_len)]
        arrivals.append(Arrival(at_s, *lengths))
    if not arrivals:
        raise OptionError(
            f"--rate {rate:g}: no request arrives within {duration_s:g} s; give more time, or another seed"
        )
    return arrivals


def fitting_scale(arrivals: Sequence[Arrival], max_model_len: int | None) -> float:
    """Return the largest factor up to 1 with which the longest request, prompt and output together, fits the model."""
    longest = max(arrival.num_input + arrival.num_output for arrival in arrivals)
    return 1.0 if max_model_len is None else min(1.0, max_model_len / longest)


def fit_lengths(
    arrivals: Sequence[Arrival],
    scale: float = 1.0,
    *,
    max_input: int | None = None,
    max_output: int | None = None,
    max_model_len: int | None = None,
) -> Fitted:
    """Multiply all lengths by one factor, so that their distribution keeps its shape, and cut those still too long.

    Every request keeps at least one token of prompt and one of output. `max_model_len` limits both together. None
    stands for no limit.

    Raises:
        OptionError: The model has no room for two tokens.
    """
    if max_model_len is not None and max_model_len < 2:
        raise OptionError(
            f"the model takes {max_model_len} token; a load test needs one with room for at least 2: serve it with a "
            "larger --max-model-len"
        )
    fitted, num_cut = [], 0
    for arrival in arrivals:
        wanted_input, wanted_output = _scaled(arrival.num_input, scale), _scaled(arrival.num_output, scale)
        num_output = min(wanted_output, max_output or wanted_output)
        num_input = min(wanted_input, max_input or wanted_input)
        if max_model_len is not None:
            num_output = min(num_output, max_model_len - 1)
            num_input = min(num_input, max_model_len - num_output)
        num_cut += (num_input, num_output) != (wanted_input, wanted_output)
        fitted.append(Arrival(arrival.at_s, num_input, num_output))
    return Fitted(fitted, num_cut)


def _scaled(num_tokens: int, scale: float) -> int:
    """Return a scaled length of at least 1, rounded down so that lengths that fit still fit after rounding.

    The 1e-9 is for products just below a whole number.
    """
    return max(1, int(num_tokens * scale + 1e-9))


def stretched(arrivals: Sequence[Arrival], time_scale: float) -> list[Arrival]:
    """Return the requests with every gap multiplied by time_scale (above 1: slower). The first arrives at 0 s."""
    first_s = arrivals[0].at_s
    return [dataclasses.replace(arrival, at_s=(arrival.at_s - first_s) * time_scale) for arrival in arrivals]


def offered_rate(arrivals: Sequence[Arrival]) -> float:
    """Return the requests per second between the first and the last request.

    Raises:
        OptionError: All requests arrive at the same time.
    """
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    if span_s <= 0:
        raise OptionError("these requests all arrive at once, so they have no rate: take more with --num-requests")
    return (len(arrivals) - 1) / span_s


def at_rate(
    arrivals: Sequence[Arrival], rate: float, *, num_requests: int | None, duration_s: float | None
) -> tuple[list[Arrival], float]:
    """Take a trace's first requests, stretch their gaps so that `rate` arrive per second, and return the factor too.

    Args:
        num_requests: How many to take; None for all.
        duration_s: Take no more than arrive within so many seconds at this rate; None for no limit.
    """
    num = len(arrivals) if num_requests is None else num_requests
    if duration_s is not None:
        num = min(num, max(2, int(rate * duration_s) + 1))
    chosen = arrivals[:num]
    if len(chosen) < 2:
        raise OptionError("one request has no rate, so no load: take more with --num-requests, or --time-scale 1")
    time_scale = offered_rate(chosen) / rate
    return stretched(chosen, time_scale), time_scale


def at_time_scale(
    arrivals: Sequence[Arrival], time_scale: float, *, num_requests: int | None, duration_s: float | None
) -> list[Arrival]:
    """Take the first requests of a trace, multiply their gaps, and return those that arrive within duration_s."""
    chosen = stretched(arrivals[:num_requests], time_scale)
    return [arrival for arrival in chosen if duration_s is None or arrival.at_s < duration_s]
