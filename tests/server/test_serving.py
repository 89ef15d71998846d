"""`whet.serve`: until it is asked to end. The command calls it; tests/cli/test_serve.py runs that."""

import json
import threading
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, TargetError
from whet.server.asked import Asked
from whet.server.engine import Engine
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions
from whet.server.serving import serve


def test_it_serves_until_it_is_asked_to_end() -> None:
    found: dict[str, Any] = {}

    def ask(server: HttpServer) -> None:
        try:
            with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as answer:
                found["models"] = [model["id"] for model in json.load(answer)["data"]]
        finally:
            server.begin_end()

    def ready(server: HttpServer, engine: Engine) -> None:
        found["max_model_len"] = engine.max_model_len
        threading.Thread(target=ask, args=(server,)).start()

    serve("docs-gpt", EngineOptions(max_model_len=64), port=0, settings=Settings(served_names=("tiny",)), ready=ready)
    assert found == {"models": ["tiny"], "max_model_len": 64}


def test_a_recipe_is_followed_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    notes: list[str] = []

    def see(directory: Path, options: EngineOptions, **others: object) -> None:
        asked.update(asdict(options))
        raise OptionError("seen")

    monkeypatch.setattr("whet.server.opening.Engine", see)
    steps = [Step(technique="fuse_qkv"), Step(technique="int8_weight", options={"rest": "float32"})]
    before = torch.get_num_threads()
    with pytest.raises(OptionError, match="seen"):
        serve("docs-gpt", EngineOptions(kv="int8"), port=0, recipe=Recipe(steps=steps), note=notes.append)
    assert (asked["dtype"], asked["weights"], asked["kv"]) == ("fp32", "int8", "int8")
    assert len(notes) == 1
    assert "fuse_qkv of the recipe is left out" in notes[0]
    with pytest.raises(OptionError, match="seen"):
        serve("docs-gpt", port=0, recipe=Recipe(steps=steps[:1]), note=notes.append)
    assert (asked["dtype"], asked["weights"]) == ("bf16", "as-is")
    assert "the engine can follow no step of the recipe" in notes[-1]
    assert torch.get_num_threads() == before


def test_replicas_get_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Asked, int, dict[str, Any]]] = []
    monkeypatch.setattr(
        "whet.server.replicas.serving.serve_replicas", lambda asked, number, **more: seen.append((asked, number, more))
    )
    settings = Settings(served_names=("tiny",), api_keys=("key",))
    options = EngineOptions(max_model_len=64)
    serve(Path("docs-gpt"), options, replicas=3, host="0.0.0.0", port=0, settings=settings, weights="int8")
    serve(models={"other": "docs-gpt"}, replicas=2)
    [(first, number, more), (second, _, _)] = seen
    assert (first.model, first.names, first.options, first.weights, number) == (
        "docs-gpt",
        ("tiny",),
        options,
        "int8",
        3,
    )
    assert (first.settings.api_keys, first.settings.is_local, more["host"]) == (("key",), False, "0.0.0.0")
    assert (second.model, second.models, second.names) == (None, {"other": "docs-gpt"}, ())


def test_what_is_wrong_is_raised() -> None:
    with pytest.raises(TargetError, match="no-such-model"):
        serve("no-such-model")
    with pytest.raises(TargetError, match="no-such-model"):
        serve("docs-gpt", draft="no-such-model")
    with pytest.raises(OptionError, match="got 70000"):
        serve("docs-gpt", port=70000)
