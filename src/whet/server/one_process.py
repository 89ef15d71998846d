"""Serve models in this process until it is asked to end."""

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from whet.errors import RanksError
from whet.server.artefacts.directories import Source
from whet.server.asked import Asked
from whet.server.http.models import Models
from whet.server.http.run import HttpServer
from whet.server.opening import Names, checked_sources, given_of, opened


def serve_here(
    asked: Asked,
    open_socket: Callable[[], socket.socket],
    *,
    note: Callable[[str], None],
    ready: Callable[[HttpServer, Models, Mapping[Names, Source]], None],
) -> None:
    """Serve until SIGTERM, Ctrl-C or the server's `begin_end`. Call it in the main thread.

    Args:
        open_socket: Binds the socket. It is called once the directories are checked, before models are loaded.
        note: Called with a sentence for each step of a recipe that is not followed, and the like.
        ready: Called with the server, its models and what their directories hold, once requests are taken. It must not
            block.

    Raises:
        WhetError: As `whet.serve` says.
    """
    sources = checked_sources(asked.model, asked.models, asked.names)
    settings = replace(asked.settings, served_names=next(iter(sources)))
    # The socket is bound before the models are loaded, and accepts connections once they are ready.
    with open_socket() as bound, opened(sources, given_of(asked, settings), note) as served:
        server = HttpServer(served, settings, bound)
        broken: list[str] = []

        def end(message: str) -> None:
            broken.append(message)
            server.begin_end()

        def begin() -> None:
            if broken:
                server.begin_end()
            ready(server, served, sources)

        for engine in set(served.engines.values()):
            engine.when_broken(end)
        before_s = sys.getswitchinterval()
        try:
            server.run(begin)
        finally:
            sys.setswitchinterval(before_s)  # the server shortens it
        if broken:
            raise RanksError(broken[0])
