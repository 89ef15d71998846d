"""Run one benchmark of a server from beginning to end: examine, calibrate, replay, summarise."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypedDict

from whet.errors import TargetError
from whet.measure.load import Observed, meter
from whet.server.load_test import arrivals
from whet.server.load_test.arrivals import Fitted
from whet.server.load_test.calibration import Capacity, burst, capacity_of
from whet.server.load_test.client import CompletionClient
from whet.server.load_test.figures import Figures, figures_of
from whet.server.load_test.options import Options
from whet.server.load_test.prompts import Prompts
from whet.server.load_test.record import Record
from whet.server.load_test.replay import Progress, Replay, replay
from whet.server.load_test.report import Report
from whet.server.load_test.server_probe import ServerFacts, examine, hit_rate, prefix_counters
from whet.server.load_test.server_process import server_on_this_machine
from whet.server.load_test.trace import Arrival
from whet.ui.figures import MIN_SAMPLES_FOR_P99

DEFAULT_LOAD = 0.7
DEFAULT_DURATION_S = 60.0

_WARM_UP, _CALIBRATION, _REPLAY = 1, 2, 0  # numbers of streams of prompts
_NUM_WARM_UP, _WARM_UP_S = 2, 60.0
_NUM_CALIBRATION, _CALIBRATION_S = 64, 60.0
_NUM_TYPICAL = 512  # the calibration uses the lengths of so many first requests, if their number is not given
_LATE_MS = 10.0
_BUNDLED = 1.05  # mean tokens in a chunk, above which a note says so


@dataclass(frozen=True)
class _Plan:
    """Hold the requests to send, and how they were chosen."""

    fitted: Fitted
    length_scale: float = 1.0
    time_scale: float | None = None
    load: float | None = None
    capacity: Capacity | None = None


class _Until(TypedDict):
    num_requests: int | None
    duration_s: float | None


async def run(
    url: str,
    options: Options,
    *,
    api_key: str | None = None,
    on_progress: Progress | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> tuple[Report, list[Record]]:
    """Put a server under load. After Ctrl-C during the replay, the report covers the requests sent until then.

    `on_stage` is called with a text at the beginning of each stage, and `on_progress` during the replay.

    Raises:
        TargetError: The server cannot be reached or used.
        OptionError: The options do not fit the server.
    """
    async with CompletionClient(url, api_key=api_key) as client:
        on_stage("asking the server what it serves")
        facts = await examine(client)
        plan = await _plan(client, options, facts, on_stage)
        on_stage("warming up")
        warm_up = _prompts(options, facts, _WARM_UP)
        await burst(client, plan.fitted.arrivals, warm_up, _NUM_WARM_UP, time_limit_s=_WARM_UP_S)
        before = await prefix_counters(client)
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        on_stage("replaying")
        with Observed(meter(server_on_this_machine(client.url))) as seen:
            done = await replay(
                client,
                plan.fitted.arrivals,
                _prompts(options, facts, _REPLAY),
                max_in_flight=options.max_in_flight,
                on_progress=on_progress,
            )
        after = None
        with contextlib.suppress(TargetError):  # report also if the server has crashed
            after = await prefix_counters(client)
        found = hit_rate(before, after)
    report = _report(client.url, options, facts, plan, done, found, started_at)
    return replace(report, busy=seen.load.cause), done.records


async def check_server(url: str, *, api_key: str | None = None) -> None:
    """Connect to a server, so that a wrong address is told at once.

    Raises:
        TargetError: The server cannot be reached.
        OptionError: The address is not valid.
    """
    async with CompletionClient(url, api_key=api_key) as client:
        await client.ask("/v1/models")


async def _plan(
    client: CompletionClient, options: Options, facts: ServerFacts, on_stage: Callable[[str], None]
) -> _Plan:
    """Return the requests, with lengths that the model takes, and at times that give the wanted load."""
    until: _Until = {"num_requests": options.num_requests, "duration_s": options.duration_s}
    if options.num_requests is None and options.duration_s is None:
        until["duration_s"] = DEFAULT_DURATION_S
    if options.trace is None:
        assert options.rate is not None
        drawn = arrivals.poisson(
            options.rate, **until, input_len=options.input_len, output_len=options.output_len, seed=options.seed
        )
        return _Plan(_fit(drawn, 1.0, options, facts))
    all_of_it = options.trace.arrivals
    length_scale = options.length_scale or arrivals.fitting_scale(all_of_it, facts.max_model_len)
    if options.time_scale is not None:
        chosen = arrivals.at_time_scale(all_of_it, options.time_scale, **until)
        return _Plan(_fit(chosen, length_scale, options, facts), length_scale, options.time_scale)
    on_stage(f"calibrating: {_NUM_CALIBRATION} requests at once")
    typical = _fit(all_of_it[: options.num_requests or _NUM_TYPICAL], length_scale, options, facts)
    prompts = _prompts(options, facts, _CALIBRATION)
    answered = await burst(client, typical.arrivals, prompts, _NUM_CALIBRATION, time_limit_s=_CALIBRATION_S)
    capacity = capacity_of(answered)
    load = options.load or DEFAULT_LOAD
    chosen, time_scale = arrivals.at_rate(all_of_it, load * capacity.requests_per_s, **until)
    return _Plan(_fit(chosen, length_scale, options, facts), length_scale, time_scale, load, capacity)


def _fit(chosen: Sequence[Arrival], length_scale: float, options: Options, facts: ServerFacts) -> Fitted:
    return arrivals.fit_lengths(
        chosen,
        length_scale,
        max_input=options.max_input,
        max_output=options.max_output,
        max_model_len=facts.max_model_len,
    )


def _prompts(options: Options, facts: ServerFacts, stream: int) -> Prompts:
    return Prompts(facts.vocab_size, shared_prefix=options.shared_prefix, seed=options.seed, stream=stream)


def _report(
    url: str, options: Options, facts: ServerFacts, plan: _Plan, done: Replay, found: float | None, started_at: str
) -> Report:
    figures = figures_of(done.records, options.slo)
    planned = plan.fitted.arrivals
    span_s = planned[-1].at_s - planned[0].at_s
    return Report(
        url=url,
        model=facts.model,
        max_model_len=facts.max_model_len,
        source=options.source if options.rate is None else f"random arrivals at {options.rate:g}/s",
        seed=options.seed,
        started_at=started_at,
        offered_per_s=(len(planned) - 1) / span_s if span_s > 0 else None,
        load=plan.load,
        capacity=plan.capacity,
        length_scale=plan.length_scale,
        time_scale=plan.time_scale,
        num_planned=len(planned),
        num_cut=plan.fitted.num_cut,
        max_in_flight=options.max_in_flight,
        shared_prefix=options.shared_prefix,
        slo=options.slo,
        figures=figures,
        prefix_hit_rate=found,
        is_partial=done.is_interrupted,
        notes=tuple(_notes(options, facts, plan, done, figures)),
    )


def _notes(options: Options, facts: ServerFacts, plan: _Plan, done: Replay, figures: Figures) -> Iterator[str]:
    if done.is_interrupted:
        yield f"ended early: {len(done.records)} of {len(plan.fitted.arrivals)} requests had been sent"
    if options.max_in_flight is not None:
        yield (
            f"not an open loop: at most {options.max_in_flight} in flight; latencies count from sending, "
            "without the wait for a turn"
        )
    elif figures.lateness is not None and figures.lateness.longest_ms > _LATE_MS:
        yield (
            f"the load generator sent requests up to {figures.lateness.longest_ms:.0f} ms late, and the latencies "
            "include this: run it on another machine or a core of its own"
        )
    if options.trace is not None and not options.trace.was_sorted:
        yield "the trace's lines were not in the order of their time, and were sorted"
    if facts.max_model_len is None and options.trace is not None and options.length_scale is None:
        yield (
            "the server does not state its max_model_len, so the trace's lengths were not scaled "
            "(--length-scale and --max-input change them)"
        )
    if plan.fitted.num_cut:
        yield f"{plan.fitted.num_cut} of {len(plan.fitted.arrivals)} requests were cut to fit the model"
    if figures.num_short:
        yield f"{figures.num_short} answers were shorter than asked for: the server does not honour ignore_eos"
    if figures.num_by_chunks:
        yield f"{figures.num_by_chunks} answers came without usage: a chunk counts as one token"
    if figures.num_chunks and figures.output_tokens > _BUNDLED * figures.num_chunks:
        num_tokens = figures.output_tokens / figures.num_chunks
        yield f"a chunk held {num_tokens:.1f} tokens on average: ITL is the time between chunks"
    known = [p for p in (figures.ttft, figures.tpot, figures.itl, figures.e2e) if p is not None]
    if any(p.p99_ms is None for p in known):
        yield f"no P99 from fewer than {MIN_SAMPLES_FOR_P99} samples"
