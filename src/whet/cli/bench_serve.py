"""whet bench-serve: put a server of language models under load."""

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whet.cli.busy import INCONCLUSIVE, BusyWaitOption, OnBusyOption, patience_of, shown
from whet.cli.model_directory import model_directory
from whet.cli.units import seconds
from whet.errors import OptionError
from whet.load_test.benchmark import Options, run
from whet.load_test.record import Record
from whet.load_test.report import Report, make_directory, write_report
from whet.load_test.server_process import started_server
from whet.load_test.terminal import show_report
from whet.load_test.trace import read_trace
from whet.measure.quiet import Patience
from whet.slo import Slo

_FAILED, _INTERRUPTED = 2, 130


_Target = Annotated[
    str,
    typer.Argument(metavar="URL|DIR|NAME", help="a server's address; or a model directory or built-in model to serve"),
]
_ServeOptions = Annotated[
    list[str] | None, typer.Argument(metavar="[-- SERVE OPTIONS...]", help="of whet serve, for a DIR or NAME")
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens: Azure's published traces"),
]
_Rate = Annotated[
    float | None, typer.Option(help="in place of --trace: random (Poisson) arrivals, so many requests per second")
]
_NumRequests = Annotated[int | None, typer.Option(help="requests to send at most", show_default="no limit")]
_Duration = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="how long to send", show_default="60s, or what --num-requests take"),
]
_Load = Annotated[
    float | None,
    typer.Option(help="with --trace: share of what the server can do, which is measured first", show_default="0.7"),
]
_TimeScale = Annotated[
    float | None, typer.Option(help="with --trace, in place of --load: factor of the gaps between requests")
]
_LengthScale = Annotated[
    float | None,
    typer.Option(help="with --trace: factor of prompts and outputs", show_default="so that the longest fits"),
]
_MaxInput = Annotated[int | None, typer.Option(help="tokens that longer prompts are cut to", show_default="none is")]
_MaxOutput = Annotated[int | None, typer.Option(help="tokens that longer outputs are cut to", show_default="none is")]
_InputLen = Annotated[str, typer.Option(metavar="RANGE", help="with --rate: tokens of prompts, uniform")]
_OutputLen = Annotated[str, typer.Option(metavar="RANGE", help="with --rate: tokens of outputs, uniform")]
_Concurrency = Annotated[
    int | None, typer.Option(help="requests in flight at most", show_default="no limit, an open loop")
]
_Prefix = Annotated[int, typer.Option(help="first tokens that all prompts share")]
_Seed = Annotated[int, typer.Option(help="of prompts and random arrivals")]
_Slo = Annotated[
    str | None, typer.Option(metavar="LIMITS", help="what the goodput must meet, as ttft=500ms,tpot=50ms,e2e=10s")
]
_Key = Annotated[str | None, typer.Option(metavar="KEY", help="that the server wants", envvar="WHET_API_KEY")]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="a directory for report.json and requests.csv")]
_AsJson = Annotated[bool, typer.Option("--json", help="print the report as one JSON object")]


def bench_serve(
    target: _Target,
    serve_options: _ServeOptions = None,
    trace: _Trace = None,
    rate: _Rate = None,
    num_requests: _NumRequests = None,
    duration: _Duration = None,
    load: _Load = None,
    time_scale: _TimeScale = None,
    length_scale: _LengthScale = None,
    max_input: _MaxInput = None,
    max_output: _MaxOutput = None,
    input_len: _InputLen = "16-255",
    output_len: _OutputLen = "32-127",
    concurrency: _Concurrency = None,
    shared_prefix: _Prefix = 0,
    seed: _Seed = 0,
    slo: _Slo = None,
    api_key: _Key = None,
    out: _Out = None,
    on_busy: OnBusyOption = "wait",
    busy_wait: BusyWaitOption = "2m",
    as_json: _AsJson = False,
) -> None:
    """Replay production traffic, or random arrivals, against a server: latencies, throughput, goodput.

    Requests are sent at their time, whatever the server does. A trace is scaled
    to the machine: its lengths so that the longest request fits the model, its
    gaps so that the load is a share of what the server can do.
    """
    console = Console(stderr=True)
    patience = patience_of(on_busy, busy_wait)
    options = Options(
        trace=None if trace is None else read_trace(trace),
        source="" if trace is None else trace.name,
        rate=rate,
        num_requests=num_requests,
        duration_s=None if duration is None else seconds(duration),
        load=load,
        time_scale=time_scale,
        length_scale=length_scale,
        max_input=max_input,
        max_output=max_output,
        input_len=_range(input_len, "input-len"),
        output_len=_range(output_len, "output-len"),
        max_in_flight=concurrency,
        shared_prefix=shared_prefix,
        seed=seed,
        slo=None if slo is None else Slo.parse(slo),
    )
    directory = None if out is None else make_directory(out)
    with shown(console, patience):
        report, records = patience.measure(
            lambda: _measure(console, target, options, api_key, serve_options or []), lambda found: found[0].busy
        )
    show_report(console if as_json else Console(), report)
    if as_json:
        print(report.to_json(indent=None), end="", flush=True)
    if directory is not None:
        write_report(directory, report, records)
        console.print(f"written to {directory}", highlight=False, markup=False)
    _leave(report, patience)


def _leave(report: Report, patience: Patience) -> None:
    """Leave with an exit code of its own where the run was cut off, nothing was answered, or the machine was busy."""
    if report.is_partial:
        raise typer.Exit(_INTERRUPTED)
    if not report.figures.num_answered:
        raise typer.Exit(_FAILED)
    if report.busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


def _measure(
    console: Console, target: str, options: Options, api_key: str | None, serve_options: Sequence[str]
) -> tuple[Report, list[Record]]:
    if "://" in target:
        if serve_options:
            raise OptionError(
                f"{' '.join(serve_options)}: options of whet serve go with a DIR or a NAME, not with a URL"
            )
        return _run(console, target, options, api_key)
    directory = model_directory(target)
    # A server of our own has to be ended where this process is asked to end, as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        with console.status("starting whet serve"):
            url = stack.enter_context(started_server(directory, serve_options, api_key=api_key))
        return _run(console, url, options, api_key)


def _run(console: Console, url: str, options: Options, api_key: str | None) -> tuple[Report, list[Record]]:
    """With a bar of how many requests have ended; redrawn seldom, as that takes time from the generator."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    seen = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not seen, refresh_per_second=2) as progress:
        bar = progress.add_task("", total=None)
        return run(
            url,
            options,
            api_key=api_key,
            on_stage=lambda stage: progress.update(bar, description=stage),
            on_progress=lambda num_ended, num_planned: progress.update(bar, completed=num_ended, total=num_planned),
        )


def _range(text: str, name: str) -> tuple[int, int]:
    """ "16-255", or one number."""
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", text)
    if found is None:
        raise OptionError(f"--{name} {text!r}: write two lengths as 16-255, from 1 up")
    return int(found[1]), int(found[2] or found[1])
