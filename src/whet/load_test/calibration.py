"""How many requests of this kind a server can do per second, from a burst that keeps it as busy as it can be."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whet.errors import TargetError
from whet.load_test.prompts import Prompts
from whet.load_test.record import Record
from whet.load_test.replay import Server, replay
from whet.load_test.trace import Arrival

NUM_REQUESTS = 64
_TIME_LIMIT_S = 60.0
_COUNTED = 0.8  # of the burst's output: at its end the last long answers run nearly alone


@dataclass(frozen=True)
class Capacity:
    """What the burst came to. seconds: of its counted part."""

    requests_per_s: float
    output_tokens_per_s: float
    num_requests: int
    seconds: float


async def calibrate(server: Server, arrivals: Sequence[Arrival], prompts: Prompts) -> Capacity:
    """Send 64 requests at once, of lengths as in `arrivals`, and see how fast they are answered.

    Raises TargetError where none is.
    """
    return capacity_of(await burst(server, arrivals, prompts, NUM_REQUESTS, time_limit_s=_TIME_LIMIT_S))


async def burst(
    server: Server, arrivals: Sequence[Arrival], prompts: Prompts, num: int, *, time_limit_s: float
) -> list[Record]:
    """So many requests at once, of lengths as in `arrivals`, and what became of them; Ctrl-C ends everything."""
    done = await replay(server, representative(arrivals, num), prompts, time_limit_s=time_limit_s)
    if done.is_interrupted:
        raise asyncio.CancelledError
    return done.records


def representative(arrivals: Sequence[Arrival], num: int) -> list[Arrival]:
    """So many requests, all at 0 s, whose total lengths lie evenly over those of `arrivals`; in a mixed order."""
    by_length = sorted(arrivals, key=lambda arrival: (arrival.num_input + arrival.num_output, arrival.num_output))
    places = ((np.arange(num) + 0.5) * len(by_length) / num).astype(int)
    chosen = [by_length[int(place)] for place in np.random.default_rng(0).permutation(places)]
    return [Arrival(0.0, arrival.num_input, arrival.num_output) for arrival in chosen]


def capacity_of(records: Sequence[Record]) -> Capacity:
    """Requests per second until four fifths of the output had come; of what was asked for and not refused.

    An answer that the time limit ended counts with nothing, so the capacity is rather too small then.
    """
    answered = [record for record in records if record.is_answered and record.token_s]
    if not answered:
        detail = next((f"{record.failure}: {record.detail}".rstrip(": ") for record in records), "no request was sent")
        raise TargetError(
            f"the server answered none of {len(records)} requests of the calibration ({detail}); look at its log"
        )
    # A chunk may hold several tokens; they are spread evenly over an answer's chunks.
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
