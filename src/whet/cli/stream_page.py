"""Serve the page of whet stream: whet stream --page."""

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from whet.ui.network import ANY_ORIGIN, LOOPBACK, bind, checked_port, is_loopback

if TYPE_CHECKING:
    from rich.console import Console

    from whet.streamer.frames import Size
    from whet.streamer.report import StreamReport
    from whet.streamer.sources import Source
    from whet.streamer.stream import StreamOptions

DEFAULT_PORT = 8600
_PANEL = "A page in the browser"

PageOption = Annotated[
    bool,
    typer.Option(
        "--page",
        help="serve a page that takes frames of the browser's camera and shows the answers",
        rich_help_panel=_PANEL,
    ),
]
HostOption = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="with --page: the address to listen on; 0.0.0.0 for all networks",
        rich_help_panel=_PANEL,
    ),
]
PortOption = Annotated[
    int, typer.Option(help="with --page: the port to listen on; 0 takes any free one", rich_help_panel=_PANEL)
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        envvar="WHET_API_KEY",
        help="with --page: viewers must give this key; may be given several times",
        rich_help_panel=_PANEL,
    ),
]
OriginsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="with --page: let web pages of this origin connect too; * lets all",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class PageAddress:
    """Say where the page is served, and to whom.

    Attributes:
        host: The address to listen on.
        port: The port; 0 for any free one.
        api_keys: A viewer must give one of these.
        cors_origins: Pages of these origins may connect too.
    """

    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()


def serve_page(
    target: str,
    source: str,
    options: "StreamOptions",
    where: PageAddress,
    console: "Console",
    *,
    rate: float | None,
    as_json: bool,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM, and show the report of each viewer's stream.

    Args:
        target: The model.
        source: The server's own source, which a viewer may choose.
        options: How streams run.
        where: Where the page is served.
        console: Where notices go.
        rate: The frames a second of an image folder or a synthetic clip.
        as_json: Whether the address and the reports go to standard output as JSON, one object a line.

    Raises:
        WhetError: The model, the source or an option cannot be used.
    """
    from rich.console import Console as Output

    from whet.streamer.http.server import PageServer
    from whet.streamer.http.session import Served
    from whet.streamer.http.settings import PageSettings
    from whet.streamer.sources import open_source
    from whet.streamer.targets import open_target
    from whet.streamer.terminal import show_report

    settings = PageSettings(is_local=is_loopback(where.host), api_keys=where.api_keys, cors_origins=where.cors_origins)
    checked_port(where.port, "--port")
    if not source.startswith("camera"):
        open_source(source, rate=rate).close()  # a mistake shows before the model is loaded

    def own_source(size: "Size") -> "Source":
        return open_source(source, size=size, fit=options.fit, rate=rate)

    num_reports = 0

    def show(report: "StreamReport") -> None:
        nonlocal num_reports
        num_reports += 1
        show_report(console if as_json else Output(), report)
        if as_json:
            print(report.to_json(indent=None), end="", flush=True)

    with bind(where.host, where.port) as bound:
        served = Served.of(open_target(target, options), options, own_source, source)
        server = PageServer(served, settings, bound, show)
        server.run(lambda: _say_ready(server.url, served.opened.name, where, console, as_json=as_json))
    console.print("whet stream: ended" if num_reports else "whet stream: ended; no frame came")


def _say_ready(url: str, model: str, where: PageAddress, console: "Console", *, as_json: bool) -> None:
    if not is_loopback(where.host):
        if not where.api_keys:
            console.print("everyone who can reach this machine may watch: --api-key keeps others out")
        console.print(
            "browsers give their camera to pages at https:// and localhost only: put a proxy with TLS before it"
        )
    if ANY_ORIGIN in where.cors_origins and not where.api_keys:
        console.print("every web page that a browser opens may connect: name the origins, or give an --api-key")
    if as_json:
        print(json.dumps({"url": url, "model": model, "pid": os.getpid()}), flush=True)
    console.print(f"whet stream: {url} streams to {model}; Ctrl-C ends")
