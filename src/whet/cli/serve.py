"""Serve language models by OpenAI's API, and what `whet tune` made by the Open Inference Protocol: whet serve."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.cli import engine_options as of_engine
from whet.cli import serve_options as of_server
from whet.errors import OptionError
from whet.measure.fast_import import large_imports
from whet.server.options import DEFAULT_PORT, EngineOptions
from whet.server.ray_serve.options import RayOptions
from whet.server.replica_bounds import Bounds, bounds
from whet.server.tool_formats import find_format
from whet.ui.network import ANY_ORIGIN, LOOPBACK, bind, checked_port, is_loopback
from whet.ui.units import num_bytes, seconds
from whet.workloads import model_directory

if TYPE_CHECKING:
    from rich.console import Console

    from whet.server.artefacts.directories import Source
    from whet.server.asked import Asked
    from whet.server.engine import Engine
    from whet.server.http.hardened import WebServer
    from whet.server.http.models import Models
    from whet.server.http.settings import Settings
    from whet.server.replicas.serving import FrontServer

    Sources = Mapping[tuple[str, ...], Source]

NAMES = {"model": model_directory.model_directory}
"""What checks a parameter as it was typed; see typed.py."""


def serve(
    model: of_server.Model = None,
    models: of_server.Models = None,
    library: of_server.Libraries = None,
    dtype: of_engine.DtypeOption = None,
    weights: of_engine.WeightsOption = None,
    kv: of_engine.KvOption = of_engine.DEFAULTS.kv,
    draft: of_server.Draft = None,
    speculation: of_engine.SpeculationOption = of_engine.DEFAULTS.speculation,
    max_num_seqs: of_engine.MaxSeqsOption = of_engine.DEFAULTS.max_num_seqs,
    max_batch_tokens: of_engine.BatchTokensOption = of_engine.DEFAULTS.max_batch_tokens,
    max_num_batched_tokens: of_server.BatchTokensToo = None,
    max_model_len: of_engine.MaxLenOption = None,
    max_waiting: of_engine.MaxWaitingOption = None,
    memory: of_engine.MemoryOption = None,
    tensor_parallel_size: of_engine.TensorParallelOption = of_engine.DEFAULTS.tensor_parallel_size,
    recipe: of_server.Recipe = None,
    host: of_server.Host = LOOPBACK,
    port: of_server.Port = DEFAULT_PORT,
    api_key: of_server.Keys = None,
    served_model_name: of_server.Names = None,
    shutdown_timeout: of_server.Timeout = "30s",
    max_connections: of_server.MaxConnections = 1024,
    head_timeout: of_server.HeadTimeout = "10s",
    body_timeout: of_server.BodyTimeout = "60s",
    write_timeout: of_server.WriteTimeout = "60s",
    max_body: of_server.MaxBody = "8MiB",
    max_pending: of_server.MaxPending = "64MiB",
    ssl_certfile: of_server.Cert = "",
    ssl_keyfile: of_server.Key = "",
    ssl_keyfile_password: of_server.KeyPassword = "",
    cors_origin: of_server.Origins = None,
    allowed_origins: of_server.OriginsToo = None,
    tool_call_parser: of_server.ToolCallParser = None,
    state_dir: of_server.StateDir = "",
    replicas: of_server.Replicas = "1",
    ray: of_server.Ray = "",
    ray_cpus: of_server.RayCpus = None,
    ray_dashboard: of_server.RayDashboard = False,
    as_json: of_server.AsJson = False,
) -> None:
    """Serve language models over HTTP by OpenAI's API, and what `whet tune` saved by the Open Inference Protocol."""
    checked_port(port, "--port")
    others = _by_name(models or ())
    names = _checked_models(model, others, served_model_name or ())
    _check_files(draft, recipe, {"--ssl-certfile": ssl_certfile, "--ssl-keyfile": ssl_keyfile if ssl_certfile else ""})
    find_format("", tool_call_parser)
    number = bounds(replicas)
    on_ray = _on_ray(ray, number, ray_cpus, dashboard=ray_dashboard)
    limits: dict[str, Any] = {
        "shutdown_timeout_s": seconds("--shutdown-timeout", shutdown_timeout, may_be_zero=True),
        "head_timeout_s": seconds("--head-timeout", head_timeout),
        "body_timeout_s": seconds("--body-timeout", body_timeout),
        "write_timeout_s": seconds("--write-timeout", write_timeout),
        "max_body_bytes": num_bytes("--max-body", max_body),
        "max_pending_bytes": num_bytes("--max-pending", max_pending),
    }
    options = EngineOptions(
        kv=kv,
        speculation=speculation,
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_num_batched_tokens or max_batch_tokens,
        max_model_len=max_model_len,
        max_waiting=of_engine.DEFAULTS.max_waiting if max_waiting is None else max_waiting,
        memory=None if memory is None else num_bytes("--memory", memory),
        tensor_parallel_size=tensor_parallel_size,
    )
    from whet.server.asked import Asked
    from whet.server.http.settings import Settings  # FastAPI, which mistakes above do without

    settings = Settings(
        served_names=names,
        api_keys=tuple(api_key or ()),
        is_local=is_loopback(host),
        max_connections=max_connections,
        **limits,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        ssl_keyfile_password=ssl_keyfile_password,
        cors_origins=(*(cors_origin or ()), *_origins(allowed_origins or ())),
        tool_call_parser=tool_call_parser,
        state_dir=state_dir,
    )
    with large_imports():
        from rich.console import Console
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)  # below it are notices, which are shown as they are
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[warnings])
    asked = Asked(
        model=model,
        models=others,
        names=tuple(served_model_name or ()),
        options=options,
        settings=settings,
        recipe=None if recipe is None else str(recipe),
        dtype=dtype,
        weights=weights,
        draft=draft,
        libraries=tuple(library or ()),
        max_waiting=max_waiting,
    )
    run = _run_one if number.most == 1 else partial(_run_replicas, number.most)
    if on_ray is not None:
        run = partial(_run_on_ray, on_ray)
    run(asked, host, port, console, as_json)
    console.print("whet serve: ended")


def _run_one(asked: "Asked", host: str, port: int, console: "Console", as_json: bool) -> None:
    with large_imports():
        from whet.server.one_process import serve_here

    def say(server: "WebServer", served: "Models", sources: "Sources") -> None:
        engine = next(iter(served.engines.values()), None)
        _say_ready(server, engine, sources, asked.settings, console, as_json=as_json)

    serve_here(asked, lambda: bind(host, port), note=console.print, ready=say)


def _run_replicas(number: int, asked: "Asked", host: str, port: int, console: "Console", as_json: bool) -> None:
    from whet.server.replicas.serving import serve_replicas  # it needs no torch

    def say(front: "FrontServer") -> None:
        _say_replicas_ready(front, asked.settings, console, as_json=as_json)

    serve_replicas(asked, number, host=host, port=port, note=console.print, ready=say)


def _run_on_ray(ray: RayOptions, asked: "Asked", host: str, port: int, console: "Console", as_json: bool) -> None:
    with large_imports():
        from whet.server.ray_serve.serving import serve_on_ray

    def say(server: "WebServer", sources: "Sources") -> None:
        _say_ready(server, None, sources, asked.settings, console, as_json=as_json)

    serve_on_ray(asked, ray=ray, host=host, port=port, note=console.print, ready=say)


def _on_ray(address: str, replicas: Bounds, cpus: int | None, *, dashboard: bool) -> RayOptions | None:
    """Return what --ray asks for; None without it."""
    if address:
        return RayOptions(address=address, replicas=replicas, cpus=cpus, dashboard=dashboard)
    given = {f"--replicas {replicas}": replicas.least != replicas.most, "--ray-cpus": cpus is not None}
    for option in (name for name, is_given in {**given, "--ray-dashboard": dashboard}.items() if is_given):
        raise OptionError(f"{option} is for --ray ADDRESS: say where the cluster is")
    return None


def _origins(given: Sequence[str]) -> list[str]:
    """Return the origins of --allowed-origins: vLLM takes a JSON list, as '["*"]'."""
    found: list[str] = []
    for text in given:
        try:
            read = json.loads(text) if text.startswith("[") else [text]
        except ValueError as error:
            raise OptionError(f"--allowed-origins {text}: write an origin, or a JSON list of origins") from error
        found += map(str, read)
    return found


def _by_name(models: Sequence[str]) -> dict[str, str]:
    """Return the directories of NAME=DIR by name."""
    found: dict[str, str] = {}
    for one in models:
        name, equals, directory = one.partition("=")
        if not (name and equals and directory) or name in found:
            why = "is given twice" if name in found else "is not NAME=DIR"
            raise OptionError(f"--model {one!r} {why}; write --model NAME=DIR once for each model")
        found[name] = directory
    return found


def _check_files(draft: str | None, recipe: Path | None, certificates: Mapping[str, str]) -> None:
    if draft is not None:
        model_directory.model_directory(draft)
    if recipe is not None:
        from whet.core.recipe import Recipe

        Recipe.read(recipe)
    for option, file in certificates.items():
        if file and not Path(file).is_file():
            raise OptionError(f"{option} {file}: No such file or directory; give a file as PEM")


def _checked_models(model: str | None, models: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    """Check that the models of --model are directories or built in, and return the names of the first one.

    What a directory holds is read later, with torch.
    """
    if model is None and not models:
        raise OptionError("there is no model to serve: give a directory, or --model NAME=DIR")
    for directory in models.values():
        model_directory.model_directory(directory)
    return tuple(names) or ((model,) if model is not None else (next(iter(models)),))


def _say_ready(
    server: "WebServer",
    engine: "Engine | None",
    sources: "Sources",
    settings: "Settings",
    console: "Console",
    *,
    as_json: bool,
) -> None:
    from whet.server.artefacts.directories import EngineSource

    name = next(iter(sources))[0]
    if engine is not None and engine.tokenizer is not None and engine.tokenizer.chat_template.is_plain:
        console.print(f"{engine.name} has no chat template; conversations are put as plain lines, 'User: ...'")
    _say_who_may_ask(settings, console)
    if as_json:
        print(json.dumps({"url": server.url, "model": name, "pid": os.getpid()}), flush=True)
    if len(sources) == 1 and engine is not None:
        console.print(f"whet serve: {server.url} answers as {name}, up to {engine.max_model_len} tokens")
        return
    for names, source in sources.items():
        where = "/v1" if isinstance(source, EngineSource) else f"/v2/models/{names[0]}/infer"
        console.print(f"whet serve: {server.url}{where} answers as {names[0]}")


def _say_replicas_ready(front: "FrontServer", settings: "Settings", console: "Console", *, as_json: bool) -> None:
    _say_who_may_ask(settings, console)
    if as_json:
        pids = [one.pid for one in front.replicas]
        told = {"url": front.url, "model": front.models[0]["name"], "pid": os.getpid(), "replicas": pids}
        print(json.dumps(told), flush=True)
    for model in front.models:
        console.print(f"whet serve: {front.url}{model['path']} answers as {model['name']}")
    for one in front.replicas:
        cores = "core" if len(one.cores) == 1 else "cores"
        console.print(f"replica {one.number}: process {one.pid} on {cores} {', '.join(map(str, one.cores))}")


def _say_who_may_ask(settings: "Settings", console: "Console") -> None:
    if not settings.is_local and not settings.api_keys:
        console.print("everyone who can reach this machine may ask: --api-key keeps others out")
    if ANY_ORIGIN in settings.cors_origins and not settings.api_keys:
        console.print("every web page that a browser opens may ask: name the origins, or give an --api-key")
