"""Serve the page of whet stream: whet stream --page."""

import json
import os

from rich.console import Console

from whet.streamer.frames import Size
from whet.streamer.http.settings import PageSettings
from whet.streamer.report import StreamReport
from whet.streamer.sources import Source, open_source
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import open_target
from whet.streamer.terminal import show_report
from whet.ui.network import ANY_ORIGIN, bind


def serve_page(
    target: str,
    source: str,
    options: StreamOptions,
    address: tuple[str, int],
    settings: PageSettings,
    console: Console,
    *,
    rate: float | None,
    as_json: bool,
) -> None:
    """Serve the page until Ctrl-C or SIGTERM, and show the report of each viewer's stream.

    Args:
        source: The server's own source, which a viewer may choose.
        address: The host and port to listen on; port 0 for any free one.
        rate: The frames a second of an image folder or a synthetic clip.
        as_json: Whether the address and the reports go to standard output as JSON, one object a line.

    Raises:
        WhetError: The model, the source or an option cannot be used.
    """
    from whet.streamer.http.server import PageServer  # packages of an extra, which streams without a page do without
    from whet.streamer.http.session import Served

    if not source.startswith("camera"):
        open_source(source, rate=rate).close()  # a mistake shows before the model is loaded

    def own_source(size: Size) -> Source:
        return open_source(source, size=size, fit=options.fit, rate=rate)

    num_reports = 0

    def show(report: StreamReport) -> None:
        nonlocal num_reports
        num_reports += 1
        show_report(console if as_json else Console(), report)
        if as_json:
            print(report.to_json(indent=None), end="", flush=True)

    with bind(*address) as bound:
        served = Served(open_target(target, options), options, own_source, source)
        server = PageServer(served, settings, bound, show)
        server.run(lambda: _say_ready(server.url, served.opened.name, settings, console, as_json=as_json))
    console.print("whet stream: ended" if num_reports else "whet stream: ended; no frame came")


def _say_ready(url: str, model: str, settings: PageSettings, console: Console, *, as_json: bool) -> None:
    if not settings.is_local:
        if not settings.api_keys:
            console.print("everyone who can reach this machine may watch: --api-key keeps others out")
        console.print(
            "browsers give their camera to pages at https:// and localhost only: put a proxy with TLS before it"
        )
    if ANY_ORIGIN in settings.cors_origins and not settings.api_keys:
        console.print("every web page that a browser opens may connect: name the origins, or give an --api-key")
    if as_json:
        print(json.dumps({"url": url, "model": model, "pid": os.getpid()}), flush=True)
    console.print(f"whet stream: {url} streams to {model}; Ctrl-C ends")
