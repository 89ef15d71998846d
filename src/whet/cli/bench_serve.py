"""Put a server of language models under load: whet bench-serve."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli.busy import INCONCLUSIVE, BusyWaitOption, OnBusyOption, busy_wait_s, patience_of
from whet.cli.exit_codes import INTERRUPTED
from whet.core.slo import Slo
from whet.errors import OptionError
from whet.files import usable_directory
from whet.measure.on_busy import OnBusy
from whet.server.load_test.options import Options, check_serve_options
from whet.server.load_test.trace import read_trace
from whet.ui.units import fraction, seconds
from whet.workloads.model_directory import model_directory

if TYPE_CHECKING:
    from rich.console import Console

    from whet.measure.quiet import QuietWait
    from whet.server.load_test.bench_serve import LoadTest
    from whet.server.load_test.report import Report

_FAILED = 2


_Target = Annotated[
    str,
    typer.Argument(
        metavar="URL|DIR|NAME", help="the address of a server, or a model directory or built-in model to serve"
    ),
]
_ServeOptions = Annotated[
    list[str] | None, typer.Argument(metavar="[-- SERVE OPTIONS...]", help="options of whet serve, with a DIR or NAME")
]
_Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="a CSV with TIMESTAMP, ContextTokens, GeneratedTokens, as Azure's published traces"
    ),
]
_Rate = Annotated[
    float | None,
    typer.Option(help="in place of --trace: random (Poisson) arrivals, with this many requests per second"),
]
_NumRequests = Annotated[int | None, typer.Option(help="the most requests to send", show_default="no limit")]
_Duration = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="how long to send", show_default="60s, or what --num-requests take"),
]
_Load = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="with --trace: the load, as a share of the server's capacity (0.7 or 70%), which is measured first",
        show_default="0.7",
    ),
]
_TimeScale = Annotated[
    float | None, typer.Option(help="with --trace, in place of --load: the factor for the gaps between requests")
]
_LengthScale = Annotated[
    float | None,
    typer.Option(
        help="with --trace: the factor for the lengths of prompts and outputs", show_default="so that the longest fits"
    ),
]
_MaxInput = Annotated[
    int | None, typer.Option(help="the most tokens of a prompt; longer ones are cut", show_default="no limit")
]
_MaxOutput = Annotated[
    int | None, typer.Option(help="the most tokens of an output; longer ones are cut", show_default="no limit")
]
_InputLen = Annotated[str, typer.Option(metavar="RANGE", help="with --rate: the range of tokens in a prompt (uniform)")]
_OutputLen = Annotated[
    str, typer.Option(metavar="RANGE", help="with --rate: the range of tokens in an output (uniform)")
]
_Concurrency = Annotated[
    int | None, typer.Option(help="the most requests in flight", show_default="no limit, an open loop")
]
_Prefix = Annotated[int, typer.Option(help="the number of first tokens that all prompts share")]
_Seed = Annotated[int, typer.Option(help="the seed of prompts and random arrivals")]
_Slo = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help="the limits that an answer must meet to count as goodput, as ttft=500ms,tpot=50ms,e2e=10s",
    ),
]
_Key = Annotated[str | None, typer.Option(metavar="KEY", help="the API key of the server", envvar="WHET_API_KEY")]
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
    """Replay production traffic, or random arrivals, against a server, and report latencies, throughput and goodput.

    Requests are sent at their scheduled times, however slow the server is. A trace is scaled to the machine: its
    lengths so that the longest request fits the model, its gaps so that the load is a share of the server's capacity.
    """
    options = Options(
        trace=None if trace is None else read_trace(trace),
        source="" if trace is None else trace.name,
        rate=rate,
        num_requests=num_requests,
        duration_s=None if duration is None else seconds("--duration", duration),
        load=None if load is None else fraction("--load", load),
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
    OnBusy.checked(on_busy)
    busy_wait_s(busy_wait)
    check_serve_options(target, serve_options or [])
    directory = None if out is None else usable_directory(out)
    from rich.console import Console

    console = Console(stderr=True)
    patience = patience_of(on_busy, busy_wait, console)
    test = _measured(console, target, options, serve_options or [], api_key, patience)
    _show(console, test, directory, as_json=as_json)
    _leave(test.report, patience)


def _check_target(target: str) -> None:
    if "://" not in target:
        model_directory(target)


NAMES = {"target": _check_target}
"""What checks a parameter as it was typed; see typed.py."""


def _measured(
    console: "Console",
    target: str,
    options: Options,
    serve_options: Sequence[str],
    api_key: str | None,
    patience: "QuietWait",
) -> "LoadTest":
    """Measure, with a bar of how many requests have ended; redrawn seldom, as that takes time from the generator."""
    from whet.cli.counted_progress import CountedProgress
    from whet.server.load_test.bench_serve import bench_serve as run_bench

    if "://" not in target:  # a server of our own has to be ended where this process is asked to end, as on Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with CountedProgress(console, refresh_per_second=2) as progress:
        bar = progress.add_task("", total=None)
        return run_bench(
            target,
            options,
            serve_options=serve_options,
            api_key=api_key,
            patience=patience,
            on_stage=lambda stage: progress.update(bar, description=stage),
            on_progress=lambda num_ended, num_planned: progress.update(bar, completed=num_ended, total=num_planned),
        )


def _show(console: "Console", test: "LoadTest", directory: Path | None, *, as_json: bool) -> None:
    from rich.console import Console as Output

    from whet.server.load_test.terminal import show_report

    show_report(console if as_json else Output(), test.report)
    if as_json:
        print(test.report.to_json(indent=None), end="", flush=True)
    if directory is not None:
        test.write(directory)
        console.print(f"written to {directory}", highlight=False, markup=False)


def _leave(report: "Report", patience: "QuietWait") -> None:
    """Leave with an exit code of its own where the run was cut off, nothing was answered, or the machine was busy."""
    if report.is_partial:
        raise typer.Exit(INTERRUPTED)
    if not report.figures.num_answered:
        raise typer.Exit(_FAILED)
    if report.busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


def _range(text: str, name: str) -> tuple[int, int]:
    """Return the two ends of a range as "16-255", or of one number."""
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", text)
    if found is None:
        raise OptionError(f"--{name} {text!r}: write two lengths as 16-255, from 1 up")
    return int(found[1]), int(found[2] or found[1])
