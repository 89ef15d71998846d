"""whet serve: a language model behind OpenAI's API."""

import json
import logging
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.units import num_bytes, seconds
from whet.models.options import Dtype, KvBits, WeightBits
from whet.server.engine import Engine
from whet.server.http.guard import is_loopback
from whet.server.http.run import DEFAULT_HOST, HttpServer
from whet.server.http.settings import Settings
from whet.server.options import SpeculationKind
from whet.server.serving import DEFAULT_PORT
from whet.server.serving import serve as run
from whet.workloads import model_directory

_Model = Annotated[str, typer.Argument(metavar=model_directory.METAVAR, help=model_directory.HELP)]
_Dtype = Annotated[
    Dtype | None,
    typer.Option(help="number format of keys, values and weights that stay as they are", show_default="bf16"),
]
_Weights = Annotated[
    WeightBits | None, typer.Option(help="how the weights are kept: fewer bits, faster", show_default="as-is")
]
_Kv = Annotated[KvBits, typer.Option(help="how keys and values are kept: int8 takes half the memory of bf16")]
_Draft = Annotated[
    str | None,
    typer.Option(metavar=model_directory.METAVAR, help="a smaller model of the same vocabulary, to guess ahead"),
]
_Speculation = Annotated[
    SpeculationKind,
    typer.Option(help="auto: guess tokens ahead while that pays; ngram: always, from the text itself; off: never"),
]
_MaxSeqs = Annotated[int, typer.Option(help="requests that run at once")]
_BatchTokens = Annotated[
    int, typer.Option(help="tokens that one step computes at most; --max-num-batched-tokens is the same")
]
_BatchTokensToo = Annotated[int | None, typer.Option("--max-num-batched-tokens", hidden=True)]
_MaxLen = Annotated[
    int | None, typer.Option(help="tokens of a prompt and its answer together", show_default="what the model takes")
]
_MaxWaiting = Annotated[int, typer.Option(help="requests that may wait for a place; more are refused (429)")]
_Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="for keys and values, as 512MB or 2GiB", show_default="a quarter of what is free"
    ),
]
_Recipe = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="recipe.toml of whet tune: its precision and threads, where no option says more"),
]
_Host = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="to listen on: 127.0.0.1 for this machine alone, 0.0.0.0 for its networks"),
]
_Port = Annotated[int, typer.Option(help="to listen on; 0: any that is free")]
_Keys = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", envvar="WHET_API_KEY", help="requests must bring this key; may be given several times"),
]
_Names = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="what requests may call the model; the first is what answers say; may be given several times",
        show_default="the directory's name",
    ),
]
_Timeout = Annotated[
    str, typer.Option(metavar="DURATION", help="after SIGTERM or Ctrl-C, requests that run have so long to end")
]
_MaxConnections = Annotated[
    int, typer.Option(help="clients that are connected at once; the one that asks nothing for longest makes room")
]
_HeadTimeout = Annotated[
    str, typer.Option(metavar="DURATION", help="in which the head of a request must come whole, else 408")
]
_BodyTimeout = Annotated[str, typer.Option(metavar="DURATION", help="the same for its body")]
_WriteTimeout = Annotated[
    str, typer.Option(metavar="DURATION", help="a client that reads none of its answer for so long is disconnected")
]
_MaxBody = Annotated[str, typer.Option(metavar="SIZE", help="of one request's body; larger ones are refused (413)")]
_MaxPending = Annotated[
    str,
    typer.Option(metavar="SIZE", help="of all bodies that are being received; beyond it the largest is refused (503)"),
]
_AsJson = Annotated[bool, typer.Option("--json", help="print address, model and process id as JSON once it serves")]


def serve(
    model: _Model,
    dtype: _Dtype = None,
    weights: _Weights = None,
    kv: _Kv = "as-is",
    draft: _Draft = None,
    speculation: _Speculation = "auto",
    max_num_seqs: _MaxSeqs = 64,
    max_batch_tokens: _BatchTokens = 512,
    max_num_batched_tokens: _BatchTokensToo = None,
    max_model_len: _MaxLen = None,
    max_waiting: _MaxWaiting = 256,
    memory: _Memory = None,
    recipe: _Recipe = None,
    host: _Host = DEFAULT_HOST,
    port: _Port = DEFAULT_PORT,
    api_key: _Keys = None,
    served_model_name: _Names = None,
    shutdown_timeout: _Timeout = "30s",
    max_connections: _MaxConnections = 1024,
    head_timeout: _HeadTimeout = "10s",
    body_timeout: _BodyTimeout = "60s",
    write_timeout: _WriteTimeout = "60s",
    max_body: _MaxBody = "8MiB",
    max_pending: _MaxPending = "64MiB",
    as_json: _AsJson = False,
) -> None:
    """Serve a language model over HTTP as OpenAI does: completions, chat, streams, metrics, and a page to try it on."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    directory = model_directory.model_directory(model)
    settings = Settings(
        served_names=tuple(served_model_name or (directory.resolve().name,)),
        api_keys=tuple(api_key or ()),
        is_local=is_loopback(host),
        shutdown_timeout_s=seconds(shutdown_timeout) if shutdown_timeout not in ("0", "0s") else 0.0,
        max_connections=max_connections,
        head_timeout_s=seconds(head_timeout),
        body_timeout_s=seconds(body_timeout),
        write_timeout_s=seconds(write_timeout),
        max_body_bytes=num_bytes(max_body),
        max_pending_bytes=num_bytes(max_pending),
    )
    run(
        directory,
        settings=settings,
        host=host,
        port=port,
        recipe=recipe,
        dtype=dtype,
        weights=weights,
        draft=draft,
        note=console.print,
        ready=lambda server, engine: _say_ready(server, engine, settings, console, as_json=as_json),
        kv=kv,
        speculation=speculation,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_num_batched_tokens or max_batch_tokens,
        max_model_len=max_model_len,
        max_waiting=max_waiting,
        memory=None if memory is None else num_bytes(memory),
    )
    console.print("whet serve: ended")


def _say_ready(server: HttpServer, engine: Engine, settings: Settings, console: Console, *, as_json: bool) -> None:
    name = settings.served_names[0]
    if engine.tokenizer is not None and engine.tokenizer.chat_template.is_plain:
        console.print(f"{name} has no chat template; conversations are put as plain lines, 'User: ...'")
    if not settings.is_local and not settings.api_keys:
        console.print("everyone who can reach this machine may ask: --api-key keeps others out")
    if as_json:
        print(json.dumps({"url": server.url, "model": name, "pid": os.getpid()}), flush=True)
    console.print(f"whet serve: {server.url} answers as {name}, up to {engine.max_model_len} tokens")
