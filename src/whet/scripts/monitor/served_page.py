"""Serve a run's page where it is asked for; all else of whet monitor does without a server."""

from typing import TYPE_CHECKING

from whet.errors import MissingExtra
from whet.scripts.monitor.run import Run

if TYPE_CHECKING:
    from whet.scripts.monitor.server import PageServer


def page_server(run: Run, host: str, port: int) -> "PageServer":
    """Return the server of a run's page, bound and not started.

    Raises:
        MissingExtra: fastapi, uvicorn or prometheus-client is not installed.
        OptionError: The address cannot be bound.
    """
    try:
        from whet.scripts.monitor.server import PageServer
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "whet":
            raise
        raise MissingExtra(error.name, "monitor", "the page of whet monitor") from error
    return PageServer(run, host, port)
