"""whet.serve: serve a language model over HTTP until the process is asked to end."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from whet.models.options import Dtype, KvBits, WeightBits
from whet.recipe import Recipe
from whet.server.engine import Engine
from whet.server.http.guard import is_loopback
from whet.server.http.run import DEFAULT_HOST, HttpServer, claim
from whet.server.http.settings import Settings
from whet.server.options import SpeculationKind
from whet.server.recipe_options import RecipeOptions, from_recipe
from whet.server.text import Tokenizer
from whet.workloads.model_directory import model_directory

DEFAULT_PORT = 8000


class EngineKeywords(TypedDict, total=False):
    """Options that go to whet.Engine as they are."""

    kv: KvBits
    speculation: SpeculationKind
    num_draft_tokens: int
    max_num_seqs: int
    max_batch_tokens: int
    max_step_ms: float
    max_model_len: int | None
    memory: int | None
    prefix_caching: bool
    max_waiting: int


def serve(
    model: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    dtype: Dtype | None = None,
    weights: WeightBits | None = None,
    draft: str | os.PathLike[str] | None = None,
    note: Callable[[str], None] = lambda line: None,
    ready: Callable[[HttpServer, Engine], None] = lambda server, engine: None,
    **options: Unpack[EngineKeywords],
) -> None:
    """Serve a language model over HTTP as OpenAI does, until SIGTERM, Ctrl-C or the server's `begin_end`.

    To be called in the main thread. Requests that run when the end is asked for are finished first.

    Args:
        model: A Hugging Face model directory, or a built-in model.
        settings: How the server answers; by default for everyone who can connect, under the directory's name.
        host: The address to listen on: 127.0.0.1 for this machine alone.
        port: To listen on; 0 for any that is free.
        recipe: Of `whet tune`: its precision and threads hold where no option says more. Threads hold for the whole
            process from then on.
        dtype: The number format of keys, values and weights that stay as they are; bf16, if neither it nor a recipe
            is given.
        weights: How the weights are kept; "as-is", if neither it nor a recipe is given.
        draft: A smaller model of the same vocabulary, to guess ahead.
        note: Is given a sentence for each step of the recipe that is not followed.
        ready: Is given the server and its engine once requests are taken. It may not block.
        options: Of whet.Engine.

    Raises:
        TargetError: A model cannot be had.
        OptionError: An option does not fit, or the port cannot be had.
        RecipeError: The recipe is damaged.
    """
    directory = model_directory(os.fspath(model))
    smaller = None if draft is None else model_directory(os.fspath(draft))
    settings = settings or Settings(served_names=(directory.resolve().name,))
    settings = replace(settings, is_local=is_loopback(host))
    found = RecipeOptions() if recipe is None else _followed(recipe, note)
    # The port is claimed before the model is loaded, and opens when the model is there.
    with (
        claim(host, port) as claimed,
        Engine(
            directory,
            tokenizer=Tokenizer(directory),
            dtype=dtype or found.dtype or "bf16",
            weights=weights or found.weights or "as-is",
            draft=smaller,
            **options,
        ) as engine,
    ):
        server = HttpServer(engine, settings, claimed)
        before_s = sys.getswitchinterval()
        try:
            server.run(lambda: ready(server, engine))
        finally:
            sys.setswitchinterval(before_s)  # which the server shortens


def _followed(recipe: str | os.PathLike[str] | Recipe, note: Callable[[str], None]) -> RecipeOptions:
    """Return what of a recipe is followed, and note the rest."""
    found = from_recipe(recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe)))
    for line in found.left_out:
        note(line)
    if (found.dtype, found.weights, found.num_threads) == (None, None, None):
        what = "the recipe" if isinstance(recipe, Recipe) else os.fspath(recipe)
        note(f"nothing in {what} is for the engine; --weights int8 or int4 is its own way to be faster")
    if found.num_threads is not None:
        torch.set_num_threads(found.num_threads)
    return found
