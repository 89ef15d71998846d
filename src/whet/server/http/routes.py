"""Which path does what."""

from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

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
from whet.server.http.service import Service


def completion_routes(service: Service) -> APIRouter:
    """What makes text."""
    router = APIRouter(responses=documented.ERRORS)

    @router.post("/v1/completions", responses=documented.answers(documented.Completion, streams=True))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Go on from one prompt or several."""
        service.check_model(body.model)
        prompts = body.prompts
        if not prompts:
            raise ApiError(400, "there is no prompt in the list", param="prompt")
        with service.slots(len(prompts) * body.num_choices) as slots:
            add_special = body.add_special_tokens is not False
            prompt_ids = [await service.prompt_ids(prompt, add_special=add_special) for prompt in prompts]
            for ids in prompt_ids:
                service.check_length(len(ids), body.max_tokens)
            generation = service.start(request, body, prompt_ids, partial(completion_params, body), slots)
        texts = [service.text(prompt) if body.needs_text else "" for prompt in prompts]
        writer = CompletionWriter(body, prompt_ids, texts, service.tokenizer, service.model_name)
        return await _answer(request, generation, writer, streams=bool(body.stream))

    @router.post("/v1/chat/completions", responses=documented.answers(documented.ChatCompletion, streams=True))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.check_model(body.model)
        with service.slots(body.num_choices) as slots:
            text = service.conversation(
                body.messages,
                add_generation_prompt=body.add_generation_prompt,
                variables=body.chat_template_kwargs,
            )
            prompt_ids = await service.prompt_ids(text, add_special=False)
            params = partial(chat_params, body)
            service.check_length(len(prompt_ids), params(0).max_tokens)
            generation = service.start(request, body, [prompt_ids], params, slots)
        writer = ChatWriter(body, service.tokenizer, service.model_name)
        return await _answer(request, generation, writer, streams=bool(body.stream))

    return router


def token_routes(service: Service) -> APIRouter:
    """Text to tokens and back."""
    router = APIRouter(responses=documented.ERRORS)

    @router.post("/tokenize", responses=documented.answers(documented.Tokens))
    async def tokenize(body: TokenizeRequest) -> Response:
        """The tokens of a prompt, or of messages as the chat template puts them."""
        service.check_model(body.model)
        if body.messages is not None:
            text = service.conversation(
                body.messages,
                add_generation_prompt=body.add_generation_prompt,
                variables=body.chat_template_kwargs,
            )
            add_special = body.add_special_tokens is True
        else:
            text, add_special = body.prompt or "", body.add_special_tokens is not False
        ids = await service.encode(text, add_special=add_special)
        pieces = [service.tokenizer.token_text(id) for id in ids] if body.return_token_strs else None
        return json_response(
            {"count": len(ids), "max_model_len": service.engine.max_model_len, "tokens": ids, "token_strs": pieces}
        )

    @router.post("/detokenize", responses=documented.answers(documented.Text))
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of tokens, special ones included."""
        service.check_model(body.model)
        unknown = max(body.tokens, default=0)
        if unknown >= service.engine.model.vocab_size:
            message = f"token {unknown}: the model's go up to {service.engine.model.vocab_size - 1}"
            raise ApiError(400, message, param="tokens")
        return json_response({"prompt": service.tokenizer.decode(body.tokens, skip_special=False)})

    return router


def state_routes(service: Service, metrics: Metrics) -> APIRouter:
    """What is served, and how it is."""
    router = APIRouter(responses=documented.ERRORS)

    def model(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "whet",
            "root": service.model_name,
            "max_model_len": service.engine.max_model_len,
        }

    @router.get("/v1/models", responses=documented.answers(documented.Models))
    async def models() -> Response:
        """What requests may call the model."""
        return json_response({"object": "list", "data": [model(name) for name in service.settings.served_names]})

    @router.get("/v1/models/{name:path}", responses=documented.answers(documented.Model))
    async def one_model(name: str) -> Response:
        """One of them."""
        service.check_model(name)
        return json_response(model(name))

    @router.get("/health", responses=documented.answers(documented.Health))
    async def health() -> Response:
        """200 where requests are taken, 503 where not."""
        service.lifecycle.check_ready()
        return json_response({"status": "ok"})

    @router.get("/version", responses=documented.answers(documented.Version))
    async def version() -> Response:
        """Of whet."""
        return json_response({"version": __version__})

    @router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
    async def scrape(request: Request) -> Response:
        """For Prometheus."""
        content, content_type = metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    @router.get("/live", responses=documented.answers(documented.Live))
    async def state() -> Response:
        """What the page shows."""
        return json_response({**asdict(service.engine.stats()), **facts(service)})

    return router


async def _answer(request: Request, generation: Generation, writer: Writer, *, streams: bool) -> Response:
    if streams:
        return EventStream(generation, writer)
    return await whole(generation, writer, request.receive)
