"""Which requests are sent, when, and how long: a trace scaled to the server, or random arrivals at a rate."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.errors import OptionError
from whet.load_test.trace import Arrival

_MAX_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Fitted:
    """Requests whose lengths fit a server. num_cut: how many were still too long after the scale, and cut."""

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
    """Arrivals of a Poisson process: gaps from an exponential distribution of mean 1 / rate, in requests per second.

    As many as num_requests, and none after duration_s. Lengths are whole numbers drawn uniformly from both ranges,
    ends included. Raises OptionError where no request comes in that time, or more than a million.
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
        raise OptionError(f"--rate {rate:g}: no request comes within {duration_s:g} s; give more time, or a seed")
    return arrivals


def fitting_scale(arrivals: Sequence[Arrival], max_model_len: int | None) -> float:
    """The largest factor up to 1 with which the longest request, prompt and output together, fits the model."""
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
    """Multiply all lengths with one factor, so that their distribution keeps its shape; cut what is still too long.

    Every request keeps at least one token of each. Raises OptionError for a model that has no room for two.
    """
    if max_model_len is not None and max_model_len < 2:
        raise OptionError(
            f"a model with room for {max_model_len} token cannot be asked for one after a prompt; serve it "
            "with a larger --max-model-len"
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
    """Rounded down, so that what fits together fits rounded too; 1e-9 is for products just below a whole number."""
    return max(1, int(num_tokens * scale + 1e-9))


def stretched(arrivals: Sequence[Arrival], time_scale: float) -> list[Arrival]:
    """The same requests with every gap multiplied by time_scale: above 1 is slower. The first comes at 0 s."""
    first_s = arrivals[0].at_s
    return [dataclasses.replace(arrival, at_s=(arrival.at_s - first_s) * time_scale) for arrival in arrivals]


def offered_rate(arrivals: Sequence[Arrival]) -> float:
    """Requests per second between the first and the last. Raises OptionError where they all come at once."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    if span_s <= 0:
        raise OptionError("these requests all come at once, so they have no rate: take more with --num-requests")
    return (len(arrivals) - 1) / span_s


def at_rate(
    arrivals: Sequence[Arrival], rate: float, *, num_requests: int | None, duration_s: float | None
) -> tuple[list[Arrival], float]:
    """The first requests of a trace, stretched so that they come at a rate. Returns them and the factor of the gaps.

    As many as num_requests; without it, as many as come within duration_s at that rate.
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
    """The first requests of a trace with their gaps multiplied; those that come within duration_s."""
    chosen = stretched(arrivals[:num_requests], time_scale)
    return [arrival for arrival in chosen if duration_s is None or arrival.at_s < duration_s]
