"""Start a command, watch it to its end, and return its summary (`whet.monitor_command`)."""

import contextlib
import os
from collections.abc import Callable, Sequence

from whet.errors import OptionError
from whet.scripts.monitor.launch import Launch
from whet.scripts.monitor.monitor import make_directory, write_summary
from whet.scripts.monitor.settings import DEFAULT_PORT, check_interval
from whet.scripts.monitor.summary import Summary, summarise
from whet.ui.network import LOOPBACK


def monitor_command(
    command: Sequence[str],
    *,
    port: int | None = None,
    host: str = LOOPBACK,
    page: bool = True,
    keep: bool = False,
    interval_s: float = 1.0,
    name: str | None = None,
    out: str | os.PathLike[str] | None = None,
    on_start: Callable[[str | None], None] = lambda url: None,
    on_end: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Watch a command as it runs: a live page, Prometheus metrics, and a summary at the end.

    Call this in the main thread, because signals that are meant for the command are forwarded to it.

    Args:
        command: The program and its arguments.
        port: The page's port. 0 takes any free one; None takes 8765, or any free one if that is in use.
        host: The page's address. With 127.0.0.1, only this machine can open it.
        page: Whether to serve the live page and /metrics.
        keep: Whether to serve the page after the end too, until Ctrl-C.
        interval_s: Seconds between samples.
        name: The run's name in titles; the script's name by default.
        out: A directory for summary.json and summary.html.
        on_start: Called with the page's address once the command runs; with None if there is no page.
        on_end: Called with the summary as soon as the command has ended.

    Returns:
        The summary, with the command's exit code.

    Raises:
        TargetError: The command cannot be started.
        OptionError: The port is in use, or the interval is too short.
        OutputError: The directory cannot be written.
    """
    check_interval(interval_s)
    directory = make_directory(None if out is None else os.fspath(out))
    launch = _launch(command, name, interval_s, (host, port) if page else None)
    on_start(launch.url)
    launch.wait()
    try:
        summary = summarise(launch.run)
        if directory is not None:
            write_summary(launch.run, directory)
        on_end(summary)
        if keep and launch.url:
            launch.serve_until_interrupted()
    finally:
        launch.close()
    return summary


def _launch(
    command: Sequence[str], name: str | None, interval_s: float, address: tuple[str, int | None] | None
) -> Launch:
    """Start the command, with the page on the given port; without one on the usual port, or any if that is in use."""
    if address is None:
        return Launch(command, name=name, interval_s=interval_s, address=None)
    host, port = address
    if port is not None:
        return Launch(command, name=name, interval_s=interval_s, address=(host, port))
    with contextlib.suppress(OptionError):
        return Launch(command, name=name, interval_s=interval_s, address=(host, DEFAULT_PORT))
    return Launch(command, name=name, interval_s=interval_s, address=(host, 0))
