"""Serve models in this process until it is asked to end."""

import socket
import sys
from collections.abc import Callable
from dataclasses import replace

from whet.errors import RanksError
from whet.server.artefacts.served_artefact import MAX_WAITING
from whet.server.asked import Asked
from whet.server.http.models import Models
from whet.server.http.run import HttpServer
from whet.server.opening import Given, checked_sources, opened
from whet.workloads.model_directory import model_directory


def serve_here(
    asked: Asked,
    open_socket: Callable[[], socket.socket],
    *,
    note: Callable[[str], None],
    ready: Callable[[HttpServer, Models], None],
) -> None:
    """Serve until SIGTERM, Ctrl-C or the server's `begin_end`. Call it in the main thread.

    Args:
        open_socket: Binds the socket. It is called once the directories are checked, before models are loaded.
        note: Called with a sentence for each step of a recipe that is not followed, and the like.
        ready: Called with the server and its models once requests are taken. It must not block.

    Raises:
        WhetError: As `whet.serve` says.
    """
    sources = checked_sources(asked.model, asked.models, asked.names)
    smaller = None if asked.draft is None else model_directory(asked.draft)
    settings = replace(asked.settings, served_names=next(iter(sources)))
    given = Given(
        asked.options,
        asked.recipe,
        asked.dtype,
        asked.weights,
        smaller,
        tuple(asked.libraries),
        max_waiting=MAX_WAITING if asked.max_waiting is None else max(1, asked.max_waiting),
        max_waiting_bytes=settings.max_pending_bytes,
    )
    # The socket is bound before the models are loaded, and accepts connections once they are ready.
    with open_socket() as bound, opened(sources, given, note) as served:
        server = HttpServer(served, settings, bound)
        broken: list[str] = []

        def end(message: str) -> None:
            broken.append(message)
            server.begin_end()

        def begin() -> None:
            if broken:
                server.begin_end()
            ready(server, served)

        for engine in set(served.engines.values()):
            engine.when_broken(end)
        before_s = sys.getswitchinterval()
        try:
            server.run(begin)
        finally:
            sys.setswitchinterval(before_s)  # the server shortens it
        if broken:
            raise RanksError(broken[0])
