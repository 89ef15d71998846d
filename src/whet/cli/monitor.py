"""Watch a command as it runs: whet monitor."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.errors import TargetError
from whet.measure.fast_import import large_imports
from whet.scripts.monitor.settings import DEFAULT_PORT, check_interval
from whet.ui.network import LOOPBACK, checked_port
from whet.ui.units import seconds

if TYPE_CHECKING:
    from whet.scripts.monitor.summary import Summary

_Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="the command, as: -- python train.py --epochs 3")
]
_Port = Annotated[
    int | None,
    typer.Option(
        help="the port of the page; 0 takes any free one",
        show_default=f"{DEFAULT_PORT}, or any where that is in use",
    ),
]
_Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="the address of the page; 127.0.0.1 is for this machine alone")
]
_Page = Annotated[bool, typer.Option("--page/--no-page", help="serve the live page and /metrics")]
_Keep = Annotated[bool, typer.Option("--keep", help="go on serving the page after the end, until Ctrl-C")]
_Interval = Annotated[str, typer.Option(metavar="TIME", help="the time between samples, as 1s or 0.5s")]
_Name = Annotated[str | None, typer.Option(help="the name of the run in titles", show_default="the script's name")]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="a directory for summary.json and summary.html")]
_AsJson = Annotated[bool, typer.Option("--json", help="print the summary as one JSON object at the end")]


def _check_program(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None and not Path(command[0]).exists():
        raise TargetError(f"cannot run {command[0]}: there is no such program; write it as: -- python train.py")


NAMES = {"command": _check_program}
"""What checks a parameter as it was typed; see typed.py."""


def monitor(
    command: _Command,
    port: _Port = None,
    host: _Host = LOOPBACK,
    page: _Page = True,
    keep: _Keep = False,
    interval: _Interval = "1s",
    name: _Name = None,
    out: _Out = None,
    as_json: _AsJson = False,
) -> None:
    """Watch a command as it runs: a live page, Prometheus metrics, and a summary at the end.

    The exit code is the command's.
    """
    if port is not None:
        checked_port(port, "--port")
    interval_s = seconds("--interval", interval)
    check_interval(interval_s)
    with large_imports():
        from rich.console import Console

        from whet.scripts.monitor.monitor_command import monitor_command
        from whet.scripts.monitor.terminal import show_summary
    console = Console(stderr=True)

    def show(summary: "Summary") -> None:
        show_summary(console, summary)
        if as_json:
            sys.stdout.write(summary.to_json(indent=None))
            sys.stdout.flush()
        if out is not None:
            console.print(f"written to {out}", highlight=False, markup=False)
        if keep and url:
            console.print(f"the page stays at {url[0]} until Ctrl-C", highlight=False)

    def began(address: str | None) -> None:
        if address:
            url.append(address)
            console.print(f"whet monitor: {address}", highlight=False)

    url: list[str] = []
    summary = monitor_command(
        command,
        port=port,
        host=host,
        page=page,
        keep=keep,
        interval_s=interval_s,
        name=name,
        out=out,
        on_start=began,
        on_end=show,
    )
    sys.exit(summary.exit_code)
