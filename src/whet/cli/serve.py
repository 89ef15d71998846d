"""whet serve: a language model behind OpenAI's API."""

import json
import logging
import os
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from whet.cli.units import num_bytes, seconds
from whet.errors import TargetError
from whet.models.served import Dtype, KvBits, WeightBits
from whet.recipe import Recipe
from whet.server.engine import Engine
from whet.server.http.guard import is_loopback
from whet.server.http.run import DEFAULT_HOST, HttpServer, claim
from whet.server.http.settings import Settings
from whet.server.options import SpeculationKind
from whet.server.recipe_options import RecipeOptions, from_recipe
from whet.server.text import Tokenizer

DEFAULT_PORT = 8000


def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a Hugging Face model directory")],
    dtype: Annotated[
        Dtype | None, typer.Option(help="of keys, values and weights that stay as they are [default: bf16]")
    ] = None,
    weights: Annotated[WeightBits | None, typer.Option(help="bits of the weights [default: as-is]")] = None,
    kv: Annotated[KvBits, typer.Option(help="bits of keys and values")] = "as-is",
    draft: Annotated[Path | None, typer.Option(help="a smaller model of the same vocabulary, to guess ahead")] = None,
    speculation: Annotated[
        SpeculationKind, typer.Option(help="auto: guess ahead while that pays; ngram: always, from the text itself")
    ] = "auto",
    max_num_seqs: Annotated[int, typer.Option(help="requests that run at once")] = 64,
    max_batch_tokens: Annotated[
        int, typer.Option("--max-batch-tokens", "--max-num-batched-tokens", help="tokens in a step")
    ] = 512,
    max_model_len: Annotated[int | None, typer.Option(help="tokens of prompt and answer [default: all]")] = None,
    max_waiting: Annotated[int, typer.Option(help="requests that may wait; more are told to come again (429)")] = 256,
    memory: Annotated[
        str | None, typer.Option(help="for keys and values, as 2GiB [default: a quarter of what is free]")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="a recipe.toml of whet tune: its precision and threads")] = None,
    host: Annotated[str, typer.Option(help="whom to serve: 127.0.0.1 is this machine alone")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="0: any that is free")] = DEFAULT_PORT,
    api_key: Annotated[
        list[str] | None, typer.Option(envvar="WHET_API_KEY", help="that a request must bring; may be repeated")
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="in requests and answers; may be repeated [default: the directory's]")
    ] = None,
    shutdown_timeout: Annotated[str, typer.Option(help="for running requests after SIGTERM or Ctrl-C")] = "30s",
    as_json: Annotated[bool, typer.Option("--json", help="print the address as JSON once it serves")] = False,
) -> None:
    """Serve a language model over HTTP as OpenAI does: completions, chat, streams, metrics, and a page to try it on."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    _check_directory(directory)
    settings = Settings(
        served_names=tuple(served_model_name or (directory.resolve().name,)),
        api_keys=tuple(api_key or ()),
        is_local=is_loopback(host),
        shutdown_timeout_s=seconds(shutdown_timeout) if shutdown_timeout not in ("0", "0s") else 0.0,
    )
    memory_bytes = num_bytes(memory) if memory is not None else None
    found = _read_recipe(recipe, console)
    with claim(host, port) as claimed:  # known now whether it can be had; it opens when the model is there
        engine = Engine(
            directory,
            tokenizer=Tokenizer(directory),
            dtype=dtype or found.dtype or "bf16",
            weights=weights or found.weights or "as-is",
            kv=kv,
            draft=draft,
            speculation=speculation,
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            max_model_len=max_model_len,
            max_waiting=max_waiting,
            memory=memory_bytes,
        )
        with engine:
            server = HttpServer(engine, settings, claimed)
            server.run(lambda: _say_ready(server, engine, settings, console, as_json=as_json))
    console.print("whet serve: ended")


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise TargetError(f"{directory} is no directory; give one with config.json, tokenizer.json and safetensors")


def _read_recipe(path: Path | None, console: Console) -> RecipeOptions:
    """What of it is followed; the rest is said. Threads hold for the whole process from here on."""
    if path is None:
        return RecipeOptions()
    found = from_recipe(Recipe.read(path))
    for line in found.left_out:
        console.print(line)
    if found.num_threads is not None:
        torch.set_num_threads(found.num_threads)
    return found


def _say_ready(server: HttpServer, engine: Engine, settings: Settings, console: Console, *, as_json: bool) -> None:
    name = settings.served_names[0]
    if engine.tokenizer is not None and engine.tokenizer.chat_template.is_plain:
        console.print(f"{name} has no chat template; conversations are put as plain lines, 'User: ...'")
    if not settings.is_local and not settings.api_keys:
        console.print("everyone who can reach this machine may ask: --api-key keeps others out")
    if as_json:
        print(json.dumps({"url": server.url, "model": name, "pid": os.getpid()}), flush=True)
    console.print(f"whet serve: {server.url} answers as {name}, up to {engine.max_model_len} tokens")
