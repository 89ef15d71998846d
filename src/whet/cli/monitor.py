"""whet monitor: watch a command as it runs."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.units import seconds
from whet.errors import OptionError
from whet.monitor.launch import Launch
from whet.monitor.monitor import MIN_INTERVAL_S, make_directory, write_summary
from whet.monitor.summary import summarise
from whet.monitor.terminal import show_summary
from whet.network import LOOPBACK

DEFAULT_PORT = 8765


def monitor(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="as: -- python train.py --epochs 3")],
    port: Annotated[
        int | None,
        typer.Option(
            help="of the page; 0: any that is free", show_default=f"{DEFAULT_PORT}, or any where that is in use"
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="of the page; 127.0.0.1: this machine alone may look")
    ] = LOOPBACK,
    page: Annotated[bool, typer.Option("--page/--no-page", help="serve the live page and /metrics")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="serve the page after the end too, until Ctrl-C")] = False,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="between samples, as 1s or 0.5s")] = "1s",
    name: Annotated[str | None, typer.Option(help="of the run, in titles", show_default="the script's")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a directory for summary.json and summary.html")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as one JSON object at the end")] = False,
) -> None:
    """Watch a command as it runs: a live page, Prometheus metrics, and a summary at the end. Exits with its code."""
    console = Console(stderr=True)
    interval_s = seconds(interval)
    if interval_s < MIN_INTERVAL_S:
        raise OptionError(f"--interval {interval}: samples lie at least {MIN_INTERVAL_S} s apart")
    directory = make_directory(out)
    launch = _launch(command, name, interval_s, (host, port) if page else None)
    if launch.url:
        console.print(f"whet monitor: {launch.url}", highlight=False)
    code = launch.wait()
    try:
        summary = summarise(launch.run)
        show_summary(console, summary)
        if as_json:
            sys.stdout.write(summary.to_json(indent=None))
            sys.stdout.flush()
        if directory is not None:
            write_summary(launch.run, directory)
            console.print(f"written to {directory}", highlight=False, markup=False)
        if keep and launch.url:
            console.print(f"the page stays at {launch.url} until Ctrl-C", highlight=False)
            launch.serve_until_interrupted()
    finally:
        launch.close()
    sys.exit(code)


def _launch(command: list[str], name: str | None, interval_s: float, address: tuple[str, int | None] | None) -> Launch:
    """On the port that was named; on the usual one, or any other where that is in use, if none was."""
    if address is None:
        return Launch(command, name=name, interval_s=interval_s, address=None)
    host, port = address
    if port is not None:
        return Launch(command, name=name, interval_s=interval_s, address=(host, port))
    with contextlib.suppress(OptionError):
        return Launch(command, name=name, interval_s=interval_s, address=(host, DEFAULT_PORT))
    return Launch(command, name=name, interval_s=interval_s, address=(host, 0))
