"""Answer the paths of the API. The docstrings of the routes are published in /openapi.json."""

from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from whet import __version__
from whet.server.http import documented
from whet.server.http.answer import EventStream, Writer, json_response, whole
from whet.server.http.chat import ChatWriter, chat_params
from whet.server.http.completions import CompletionWriter, completion_params
from whet.server.http.errors import ApiError
from whet.server.http.generation import Generation
from whet.server.http.metrics import Metrics
from whet.server.http.page import facts
from whet.server.http.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from whet.server.http.request_parsing import unknown_model
from whet.server.http.service import Service
from whet.server.http.tools import tool_use


def completion_routes(service: Service) -> APIRouter:
    """Return the routes that generate text."""
    router = APIRouter(responses=documented.ERRORS)

    @router.post("/v1/completions", **documented.exchange(CompletionRequest, documented.Completion, streams=True))
    async def completions(request: Request) -> Response:
        """Generate the text that follows one prompt or several. With `stream: true`, send it in server-sent events."""
        async with service.intake.reading(request, CompletionRequest) as read:
            body: CompletionRequest = read.body
            if not read.num_prompts:
                raise ApiError(400, "there is no prompt in the list", param="prompt")
            model = service.engine(body.model)
            with model.slots(read.num_prompts * body.num_choices) as slots:
                prompts = await read.prompts()
                params = partial(completion_params, body)
                generation = await model.start(request, body, prompts.token_ids, params, slots)
        writer = CompletionWriter(body, prompts.token_ids, prompts.texts, model.tokenizer, model.model_name)
        return await _answer(request, generation, writer, streams=bool(body.stream))

    @router.post("/v1/chat/completions", **documented.exchange(ChatRequest, documented.ChatCompletion, streams=True))
    async def chat_completions(request: Request) -> Response:
        """Generate the next message of a conversation. With `stream: true`, send it in server-sent events."""
        async with service.intake.reading(request, ChatRequest) as read:
            body: ChatRequest = read.body
            model = service.engine(body.model)
            several = body.parallel_tool_calls is not False
            tools = tool_use(body.tools, body.tool_choice, several=several, form=model.tool_format)
            with model.slots(body.num_choices) as slots:
                prompts = await read.prompts()
                params = partial(chat_params, body, tools=tools, tokenizer=model.tokenizer)
                generation = await model.start(request, body, prompts.token_ids, params, slots)
        writer = ChatWriter(body, model.tokenizer, model.model_name, tools)
        return await _answer(request, generation, writer, streams=bool(body.stream))

    return router


def token_routes(service: Service) -> APIRouter:
    """Return the routes that turn text into tokens and back."""
    router = APIRouter(responses=documented.ERRORS)

    async def answer(request: Request, kind: type[BaseModel]) -> Response:
        async with service.intake.reading(request, kind) as read:
            return Response(await read.answer(), media_type="application/json")

    @router.post("/tokenize", **documented.exchange(TokenizeRequest, documented.Tokens))
    async def tokenize(request: Request) -> Response:
        """Return the tokens of a prompt, or of messages in the form of the model's chat template."""
        return await answer(request, TokenizeRequest)

    @router.post("/detokenize", **documented.exchange(DetokenizeRequest, documented.Text))
    async def detokenize(request: Request) -> Response:
        """Return the text of a list of tokens, including special tokens."""
        return await answer(request, DetokenizeRequest)

    return router


def state_routes(service: Service, metrics: Metrics) -> APIRouter:
    """Return the routes that describe the served model and the state of the server."""
    router = APIRouter(responses=documented.ERRORS)

    def model(name: str) -> dict[str, Any]:
        served = next((one for one in service.engines if name in one.served.names), None)
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "whet",
            "root": name if served is None else served.model_name,
            "max_model_len": None if served is None else served.engine.max_model_len,
        }

    @router.get("/v1/models", responses=documented.answers(documented.Models))
    async def models() -> Response:
        """List the names by which requests may call the models."""
        return json_response({"object": "list", "data": [model(name) for name in service.names]})

    @router.get("/v1/models/{name:path}", responses=documented.answers(documented.Model))
    async def one_model(name: str) -> Response:
        """Describe a served model."""
        if name not in service.names:
            raise unknown_model(name, service.names)
        return json_response(model(name))

    @router.get("/health", responses=documented.answers(documented.Health))
    async def health() -> Response:
        """Return status 200 if the server takes requests, and 503 while it loads the model or shuts down."""
        service.lifecycle.check_ready()
        return json_response({"status": "ok"})

    @router.get("/version", responses=documented.answers(documented.Version))
    async def version() -> Response:
        """Return the version of whet."""
        return json_response({"version": __version__})

    @router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
    async def scrape(request: Request) -> Response:
        """Return the engine's metrics in the text format of Prometheus."""
        content, content_type = metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    @router.get("/live", responses=documented.answers(documented.Live))
    async def state() -> Response:
        """Return the current figures of the first engine, which the server's page shows."""
        if not service.engines:
            raise ApiError(404, "there is no language model here, and these are figures of one")
        return json_response({**asdict(service.engines[0].engine.stats()), **facts(service)})

    return router


async def _answer(request: Request, generation: Generation, writer: Writer, *, streams: bool) -> Response:
    if streams:
        return EventStream(generation, writer)
    return await whole(generation, writer, request.receive)
