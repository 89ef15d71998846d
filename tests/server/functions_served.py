"""Plain functions in place of artefacts, so that a test says what is computed, and when."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from asking import Answer, ask, serving
from torch import Tensor

from whet.core.signature import output_tensors, read_signature
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.http.models import Models
from whet.server.http.run import HttpServer


def artefact_of(function: Callable[..., Any], *batches: Any) -> Any:
    """What an artefact of the function has: a signature, and a run on flat tensors. batches: what it is called with."""
    first = batches[0]
    args = first if isinstance(first, tuple) else (first,)
    signature = read_signature(batches, function(*args))
    return SimpleNamespace(
        signature=signature,
        run=lambda *tensors: output_tensors(function(*tensors)),
        manifest=SimpleNamespace(conditions=[], runtime="program"),
        runtime=SimpleNamespace(ranges_per_call=False),
    )


def doubled(x: Tensor) -> dict[str, Tensor]:
    return {"twice": x * 2, "sum": x.sum(1)}


X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]
INPUT = {"name": "input_0", "datatype": "FP32", "shape": [2, 3], "data": X}  # for `doubled`
DOUBLED = (torch.zeros(2, 3), torch.zeros(5, 3))  # the batch dimension is free


@contextmanager
def serving_functions(functions: dict[str, tuple[Callable[..., Any], Sequence[Any]]], **options: Any) -> Iterator[Any]:
    """A server of functions by name, each with batches that it takes. options: of ServedArtefact, and of the server."""
    named = ("max_batch", "max_waiting", "max_waiting_bytes")
    of_artefacts = {key: options.pop(key) for key in named if key in options}
    made = {
        name: ServedArtefact(name, artefact_of(function, *batches), **of_artefacts)
        for name, (function, batches) in functions.items()
    }
    try:
        with serving(Models(artefacts=made), **options) as server:  # type: ignore[arg-type]
            yield server
    finally:
        for one in made.values():
            one.close()


def infer(server: HttpServer, body: object, path: str = "/v2/models/doubled/infer", **headers: str) -> Answer:
    return ask(server, path, body, headers=headers or None)


def refusal(answer: Answer, status: int) -> str:
    assert answer.status == status
    assert answer.json.keys() == {"error"}
    return str(answer.json["error"])
