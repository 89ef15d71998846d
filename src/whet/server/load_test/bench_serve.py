"""Put a server under load (whet.bench_serve): one that runs already, or one that is started for the test."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from whet.files import usable_directory
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.server.load_test.benchmark import check_server, run
from whet.server.load_test.options import Options, check_serve_options
from whet.server.load_test.record import Record
from whet.server.load_test.replay import Progress
from whet.server.load_test.report import Report, write_report
from whet.server.load_test.server_process import started_server
from whet.workloads.model_directory import model_directory


@dataclass(frozen=True)
class LoadTest:
    """Hold the result of a load test: the figures, and all requests with their times."""

    report: Report
    records: tuple[Record, ...]

    def _repr_html_(self) -> str | None:
        return self.report._repr_html_()

    def write(self, directory: str | Path) -> None:
        """Write report.json and requests.csv.

        Raises:
            OutputError: The directory cannot be written to.
        """
        write_report(usable_directory(Path(directory)), self.report, self.records)


def bench_serve(
    target: str,
    options: Options,
    *,
    serve_options: Sequence[str] = (),
    api_key: str | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: QuietWait | None = None,
    on_progress: Progress | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> LoadTest:
    """Replay production traffic, or random arrivals, against a server, and measure latencies, throughput and goodput.

    Args:
        target: A server's address; or a model directory or built-in model, for which `whet serve` is started.
        serve_options: Command-line options of `whet serve`, if it is started.
        on_busy: What to do if other processes disturb the measurement: "wait", "inconclusive" or "go-on".
        busy_wait_s: The longest total wait, in seconds.
        patience: Replaces the two options above, for callers that show the waiting.
        on_progress: Called with the number of requests that have ended, and the number of all requests.
        on_stage: Called with a text at the beginning of each stage.

    Returns:
        The load test. If the machine was busy, the report says so. After Ctrl-C, it covers the requests sent so far.

    Raises:
        TargetError: The server cannot be started, reached or used.
        OptionError: The options do not fit the server, or serve_options are given together with an address.
    """
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    check_serve_options(target, serve_options)
    is_remote = "://" in target
    directory = None if is_remote else model_directory(target)

    def once() -> LoadTest:
        with ExitStack() as stack:
            url = target
            if directory is not None:
                on_stage("starting whet serve")
                url = stack.enter_context(started_server(directory, serve_options, api_key=api_key))
            running = run(url, options, api_key=api_key, on_progress=on_progress, on_stage=on_stage)
            report, records = asyncio.run(running)
            return LoadTest(report, tuple(records))

    if is_remote:
        asyncio.run(check_server(target, api_key=api_key))  # before the wait for a quiet machine
    patience.begin()
    return patience.measure(once, lambda test: test.report.busy)
