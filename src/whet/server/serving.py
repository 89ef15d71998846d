"""Serve models over HTTP (whet.serve) until the process is asked to end."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from whet.core.recipe import Recipe
from whet.models.options import Dtype, WeightBits
from whet.server.asked import Asked
from whet.server.engine import Engine
from whet.server.http.hardened import WebServer
from whet.server.http.settings import Settings
from whet.server.one_process import serve_here
from whet.server.options import DEFAULT_PORT, EngineOptions
from whet.ui.network import LOOPBACK, bind, is_loopback


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
    replicas: int = 1,
    note: Callable[[str], None] = lambda line: None,
    ready: Callable[[WebServer, Engine | None], None] = lambda server, engine: None,
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
        replicas: How many processes serve the same, each on its share of the cores, behind one address.
        note: Called with a sentence for each step of a recipe that is not followed, and for each artefact whose
            requests cannot share calls.
        ready: Called with the server and its first engine (None if there is no engine in this process) once requests
            are taken. It must not block.

    Raises:
        TargetError: A model cannot be loaded.
        ArtefactError: An artefact is damaged.
        OptionError: An option does not fit, or the port is not available.
        RecipeError: The recipe is damaged.
        RanksError: One of the processes that compute a model together has ended. The server then ends too.
    """
    names = settings.served_names if settings else ()
    settings = settings or Settings(served_names=("model",))  # the directory's name takes its place
    asked = Asked(
        model=None if model is None else os.fspath(model),
        models={name: os.fspath(directory) for name, directory in models.items()},
        names=names,
        options=options or EngineOptions(),
        settings=replace(settings, is_local=is_loopback(host)),
        recipe=recipe if recipe is None or isinstance(recipe, Recipe) else os.fspath(recipe),
        dtype=dtype,
        weights=weights,
        draft=None if draft is None else os.fspath(draft),
        libraries=tuple(os.fspath(library) for library in libraries),
        max_waiting=max_waiting,
    )
    if replicas != 1:
        from whet.server.replicas.serving import serve_replicas  # and aiohttp, which one process does not need

        serve_replicas(asked, replicas, host=host, port=port, note=note, ready=lambda front: ready(front, None))
        return
    serve_here(
        asked,
        lambda: bind(host, port),
        note=note,
        ready=lambda server, served, _: ready(server, next(iter(served.engines.values()), None)),
    )
