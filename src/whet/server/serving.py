"""Serve models over HTTP (whet.serve) until the process is asked to end."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from whet.core.recipe import Recipe
from whet.errors import RanksError
from whet.models.options import Dtype, WeightBits
from whet.server.artefacts.served_artefact import MAX_WAITING
from whet.server.engine import Engine
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.opening import Given, checked_sources, opened
from whet.server.options import DEFAULT_PORT, EngineOptions
from whet.ui.network import LOOPBACK, bind, is_loopback
from whet.workloads.model_directory import model_directory


def serve(
    model: str | os.PathLike[str] | None = None,
    options: EngineOptions | None = None,
    *,
    models: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}),
    settings: Settings | None = None,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    dtype: Dtype | None = None,
    weights: WeightBits | None = None,
    draft: str | os.PathLike[str] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    max_waiting: int | None = None,
    note: Callable[[str], None] = lambda line: None,
    ready: Callable[[HttpServer, Engine | None], None] = lambda server, engine: None,
) -> None:
    """Serve models over HTTP until SIGTERM, Ctrl-C or the server's `begin_end`.

    Language models answer as OpenAI's do, and what `whet tune` made of other models by the Open Inference Protocol.
    Call it in the main thread. On shutdown, running requests are finished first.

    Args:
        model: A Hugging Face model directory, a built-in model, or a directory that `whet tune` or `whet apply` wrote.
        options: The options of the engines.
        models: More models, by the names that requests call them by.
        settings: The settings of the server. By default, it needs no key, and the model has the directory's name.
        host: The address to listen on. 127.0.0.1 can be reached from this machine only.
        port: The port to listen on; 0 for any free one.
        recipe: A recipe of `whet tune`. Its precision and threads replace those of the options. The number of threads
            is set for the whole process, and stays. By default, the recipe that lies in the directory is followed.
        dtype: Replaces the dtype of the options and the recipe.
        weights: Replaces the weights of the options and the recipe.
        draft: A smaller model with the same vocabulary, which proposes tokens.
        libraries: What registers the custom operators of artefacts, as for `whet.load`.
        max_waiting: How many samples of each artefact may wait, at least 1; 1,024 by default. Their bytes may be as
            many as max_pending_bytes of the settings.
        note: Called with a sentence for each step of a recipe that is not followed, and for each artefact whose
            requests cannot share calls.
        ready: Called with the server and its first engine (None if there is no engine) once requests are taken. It
            must not block.

    Raises:
        TargetError: A model cannot be loaded.
        ArtefactError: An artefact is damaged.
        OptionError: An option does not fit, or the port is not available.
        RecipeError: The recipe is damaged.
        RanksError: One of the processes that compute a model together has ended. The server then ends too.
    """
    sources = checked_sources(model, models, settings.served_names if settings else ())
    smaller = None if draft is None else model_directory(os.fspath(draft))
    settings = settings or Settings(served_names=next(iter(sources)))
    settings = replace(settings, is_local=is_loopback(host))
    given = Given(
        options or EngineOptions(),
        recipe,
        dtype,
        weights,
        smaller,
        tuple(libraries),
        max_waiting=MAX_WAITING if max_waiting is None else max(1, max_waiting),
        max_waiting_bytes=settings.max_pending_bytes,
    )
    # The port is bound before the models are loaded, and accepts connections once they are ready.
    with bind(host, port) as bound, opened(sources, given, note) as served:
        server = HttpServer(served, settings, bound)
        broken: list[str] = []

        def end(message: str) -> None:
            broken.append(message)
            server.begin_end()

        def begin() -> None:
            if broken:
                server.begin_end()
            ready(server, next(iter(served.engines.values()), None))

        for engine in set(served.engines.values()):
            engine.when_broken(end)
        before_s = sys.getswitchinterval()
        try:
            server.run(begin)
        finally:
            sys.setswitchinterval(before_s)  # the server shortens it
        if broken:
            raise RanksError(broken[0])
