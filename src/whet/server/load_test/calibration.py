"""Measure how many requests of given lengths a server can do per second, with a burst of requests."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.errors import TargetError
from whet.server.load_test.prompts import Prompts
from whet.server.load_test.record import Record
from whet.server.load_test.replay import Server, replay
from whet.server.load_test.trace import Arrival

_COUNTED = 0.8  # the share of the burst's output that is counted: at the end, the longest answers run nearly alone


@dataclass(frozen=True)
class Capacity:
    """Hold a server's capacity. `num_requests` were answered in the burst, whose counted part took `seconds`."""

    requests_per_s: float
    output_tokens_per_s: float
    num_requests: int
    seconds: float


async def burst(
    server: Server, arrivals: Sequence[Arrival], prompts: Prompts, num: int, *, time_limit_s: float
) -> list[Record]:
    """Send `num` requests at once, with lengths as in `arrivals`, and return their records.

    Raises:
        CancelledError: Ctrl-C was pressed.
    """
    done = await replay(server, representative(arrivals, num), prompts, time_limit_s=time_limit_s)
    if done.is_interrupted:
        raise asyncio.CancelledError
    return done.records


def representative(arrivals: Sequence[Arrival], num: int) -> list[Arrival]:
    """Return `num` requests, all at 0 s, whose total lengths are spread evenly over those of `arrivals`, shuffled."""
    by_length = sorted(arrivals, key=lambda arrival: (arrival.num_input + arrival.num_output, arrival.num_output))
    places = ((np.arange(num) + 0.5) * len(by_length) / num).astype(int)
    chosen = [by_length[int(place)] for place in np.random.default_rng(0).permutation(places)]
    return [Arrival(0.0, arrival.num_input, arrival.num_output) for arrival in chosen]


def capacity_of(records: Sequence[Record]) -> Capacity:
    """Return the rates until four fifths of the burst's output had arrived. Only answered requests count.

    An answer that the time limit ended does not count. The capacity is then rather too low.

    Raises:
        TargetError: No request was answered.
    """
    answered = [record for record in records if record.is_answered and record.token_s]
    if not answered:
        detail = next((f"{record.failure}: {record.detail}".rstrip(": ") for record in records), "no request was sent")
        raise TargetError(
            f"the server answered none of {len(records)} requests of the calibration ({detail}); look at its log"
        )
    # A chunk may hold several tokens. An answer's tokens are divided evenly among its chunks.
    times_s = np.concatenate([record.token_s for record in answered])
    tokens = np.concatenate(
        [np.full(len(record.token_s), record.num_output / len(record.token_s)) for record in answered]
    )
    order = np.argsort(times_s, kind="stable")
    came = np.cumsum(tokens[order])
    place = min(int(np.searchsorted(came, _COUNTED * came[-1])), len(came) - 1)
    seconds = float(times_s[order][place]) - min(record.start_s for record in answered)
    share = float(came[place] / came[-1])
    return Capacity(
        requests_per_s=share * len(answered) / seconds,
        output_tokens_per_s=float(came[place]) / seconds,
        num_requests=len(answered),
        seconds=seconds,
    )
