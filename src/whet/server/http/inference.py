"""Serve the Open Inference Protocol, version 2, as KServe, Triton and their clients speak it over HTTP.

Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from whet import __version__
from whet.errors import WhetError
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.tensor_specs import TensorSpec
from whet.server.http import documented
from whet.server.http.admission import release, unless_long
from whet.server.http.answer import json_response
from whet.server.http.body import content_of
from whet.server.http.errors import HEADER_LENGTH, ApiError, as_api_errors, failed, invalid, unavailable
from whet.server.http.leaving import answered
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.models import Models
from whet.server.http.request_parsing import SMALL
from whet.server.http.tensors import (
    Inference,
    InferenceRequest,
    json_size,
    read_inference,
    write_inference,
)

_log = logging.getLogger("whet.server")

VERSION = "1"  # of every model: a tuned directory holds one
_PLATFORM = "whet"
_SIMPLE_TYPES = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})


async def worked(request: Request, lifecycle: Lifecycle, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the answer that `work` makes, unless the client leaves or the server ends first.

    Raises:
        ApiError: 503 if the server ends.
    """
    task = asyncio.ensure_future(work)
    is_cut = False

    def cut() -> None:
        nonlocal is_cut
        is_cut = True
        task.cancel()

    lifecycle.started(cut)
    try:
        return await answered(request.receive, task)
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if not is_cut or (this is not None and this.cancelling()):
            raise
        said = "the server is shutting down, and this request took too long; send it again later"
        raise unavailable(said) from None
    finally:
        lifecycle.ended(cut)


def inference_routes(models: Models, lifecycle: Lifecycle) -> APIRouter:
    router = APIRouter(responses=documented.INFERENCE_ERRORS)

    @router.get("/v2", responses=documented.answers(documented.ServerMetadata))
    async def server() -> Response:
        """Describe the server."""
        return json_response({"name": "whet", "version": __version__, "extensions": ["binary_tensor_data"]})

    @router.get("/v2/health/live", responses=documented.answers(documented.ServerLive))
    async def live() -> Response:
        """Return 200 as long as the process answers."""
        return json_response({"live": True})

    @router.get("/v2/health/ready", responses=documented.answers(documented.ServerReady))
    async def ready() -> Response:
        """Return 200 if requests are taken, and 503 if not."""
        lifecycle.check_ready()
        return json_response({"ready": True})

    _add_model_routes(router, models, lifecycle)
    return router


def _add_model_routes(router: APIRouter, models: Models, lifecycle: Lifecycle) -> None:
    """Add the routes of models. Each is there with a version in its path too."""

    async def model(name: str) -> Response:
        """Describe a model's inputs and outputs."""
        return json_response(_metadata(models.artefact(name)))

    async def ready(name: str) -> Response:
        """Return 200 if a model takes requests, and 503 if not."""
        models.artefact(name)
        lifecycle.check_ready()
        return json_response({"name": name, "ready": True})

    async def infer(request: Request, name: str) -> Response:
        """Run a model on tensors, given as JSON or as bytes behind it."""
        artefact = models.artefact(name)
        asked = await _read(artefact, request)
        return await worked(request, lifecycle, _answered(artefact, asked))

    async def check_version(name: str, version: str) -> None:
        """Raise ApiError (404) where there is no model of that name and version."""
        models.artefact(name)
        if version != VERSION:
            raise ApiError(404, f"{name} has no version {version!r}, but: {VERSION}", code="model_not_found")

    routes = (
        ("GET", "", model, {"responses": documented.answers(documented.ModelMetadata)}),
        ("GET", "/ready", ready, {"responses": documented.answers(documented.ModelReady)}),
        ("POST", "/infer", infer, documented.exchange(InferenceRequest, documented.Inference)),
    )
    for version, ending, checks in (("", "", []), ("/versions/{version}", "_of_version", [Depends(check_version)])):
        for method, path, answer, described in routes:
            url, called = f"/v2/models/{{name}}{version}{path}", f"{answer.__name__}{ending}"
            router.add_api_route(url, answer, methods=[method], name=called, dependencies=checks, **described)


async def _read(artefact: ServedArtefact, request: Request) -> Inference:
    _check_type(request)
    content = await content_of(request)
    header_length = request.headers.get(HEADER_LENGTH)
    if encoding := request.headers.get("content-encoding"):
        raise ApiError(415, f"a body that is encoded ({encoding}) is not read: send it as it is")
    arguments = (content, header_length, artefact.inputs, artefact.output_names)
    asked = await unless_long(json_size(content, header_length), SMALL, read_inference, *arguments)
    del content, arguments
    release(request)
    places = artefact.num_places(asked.tensors)
    if places > artefact.max_waiting:
        raise ApiError(413, f"{places} samples in one request; this server takes {artefact.max_waiting} at most")
    return asked


def _check_type(request: Request) -> None:
    """Refuse bodies that a web page of any origin can send: browsers ask first where the type is another.

    Raises:
        ApiError: 415 for such a type, or for none where a browser sends the request.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in _SIMPLE_TYPES or (not media_type and "origin" in request.headers):
        said = media_type or "without a type"
        raise ApiError(415, f"a body that is {said} is not read: send it with Content-Type: application/json")


async def _answered(artefact: ServedArtefact, asked: Inference) -> Response:
    with model_errors(artefact):
        outputs = await artefact.infer(asked.tensors)
    head: dict[str, Any] = {"model_name": artefact.name, "model_version": VERSION}
    if asked.id is not None:
        head["id"] = asked.id
    named = dict(zip(artefact.output_names, outputs, strict=True))
    body, num_json = await write_inference(head, named, asked.wishes)
    if num_json is None:
        return Response(body, media_type="application/json")
    return Response(body, media_type="application/octet-stream", headers={HEADER_LENGTH: str(num_json)})


@contextmanager
def model_errors(artefact: ServedArtefact) -> Iterator[None]:
    """Raise what goes wrong in a model as ApiError.

    It is 400 for values or sizes that it does not take, 429 where too many wait, 500 where it fails, 503 at a shutdown.
    """
    try:
        with as_api_errors():
            yield
    except (ApiError, asyncio.CancelledError):
        raise
    except WhetError as error:
        raise invalid(str(error)) from error
    except Exception as error:
        _log.error("%s failed", artefact.name, exc_info=error)
        raise failed(
            f"the model failed on these inputs ({type(error).__name__}); the server's log says where"
        ) from error


def _metadata(artefact: ServedArtefact) -> dict[str, Any]:
    return {
        "name": artefact.name,
        "versions": [VERSION],
        "platform": _PLATFORM,
        "inputs": [_described(spec) for spec in artefact.inputs],
        "outputs": [_described(spec) for spec in artefact.outputs],
    }


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.sizes}
