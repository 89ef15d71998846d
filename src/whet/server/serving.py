"""Serve a language model over HTTP (whet.serve) until the process is asked to end."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from whet.artefact import set_threads
from whet.models.options import Dtype, WeightBits
from whet.network import LOOPBACK, bind, is_loopback
from whet.recipe import Recipe
from whet.server.engine import Engine
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions
from whet.server.recipe_options import RecipeOptions, from_recipe
from whet.server.text import Tokenizer
from whet.workloads.model_directory import model_directory

DEFAULT_PORT = 8000


def serve(
    model: str | os.PathLike[str],
    options: EngineOptions | None = None,
    *,
    settings: Settings | None = None,
    host: str = LOOPBACK,
    port: int = DEFAULT_PORT,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    dtype: Dtype | None = None,
    weights: WeightBits | None = None,
    draft: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = lambda line: None,
    ready: Callable[[HttpServer, Engine], None] = lambda server, engine: None,
) -> None:
    """Serve a language model over HTTP as OpenAI does, until SIGTERM, Ctrl-C or the server's `begin_end`.

    Call it in the main thread. On shutdown, running requests are finished first.

    Args:
        model: A Hugging Face model directory, or a built-in model.
        options: The options of the engine.
        settings: The settings of the server. By default, it needs no key, and the model has the directory's name.
        host: The address to listen on. 127.0.0.1 can be reached from this machine only.
        port: The port to listen on; 0 for any free one.
        recipe: A recipe of `whet tune`. Its precision and threads replace those of the options. The number of threads
            is set for the whole process, and stays.
        dtype: Replaces the dtype of the options and the recipe.
        weights: Replaces the weights of the options and the recipe.
        draft: A smaller model with the same vocabulary, which proposes tokens.
        note: Called with a sentence for each step of the recipe that is not followed.
        ready: Called with the server and its engine once requests are taken. It must not block.

    Raises:
        TargetError: A model cannot be loaded.
        OptionError: An option does not fit, or the port is not available.
        RecipeError: The recipe is damaged.
    """
    directory = model_directory(os.fspath(model))
    smaller = None if draft is None else model_directory(os.fspath(draft))
    settings = settings or Settings(served_names=(directory.resolve().name,))
    settings = replace(settings, is_local=is_loopback(host))
    found = RecipeOptions() if recipe is None else _followed(recipe, note)
    options = options or EngineOptions()
    options = replace(
        options,
        dtype=dtype or found.dtype or options.dtype,
        weights=weights or found.weights or options.weights,
    )
    # The port is bound before the model is loaded, and accepts connections once the model is ready.
    with bind(host, port) as bound, Engine(directory, options, tokenizer=Tokenizer(directory), draft=smaller) as engine:
        server = HttpServer(engine, settings, bound)
        before_s = sys.getswitchinterval()
        try:
            server.run(lambda: ready(server, engine))
        finally:
            sys.setswitchinterval(before_s)  # the server shortens it


def _followed(recipe: str | os.PathLike[str] | Recipe, note: Callable[[str], None]) -> RecipeOptions:
    """Return the options of a recipe, set its threads, and note the steps that are not followed."""
    found = from_recipe(recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe)))
    for line in found.left_out:
        note(line)
    if (found.dtype, found.weights, found.num_threads) == (None, None, None):
        what = "the recipe" if isinstance(recipe, Recipe) else os.fspath(recipe)
        note(f"the engine can follow no step of {what}; --weights int8 or int4 makes it faster")
    if found.num_threads is not None:
        set_threads(found.num_threads)
    return found
