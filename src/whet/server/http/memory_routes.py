"""Answer the paths under /v1/states. The docstrings of the routes are published in /openapi.json."""

import asyncio
import logging
from typing import Any

from fastapi import APIRouter, Request, Response

from whet.errors import OptionError, OutputError
from whet.models.memory_bank.served_memory import ServedMemory
from whet.models.memory_bank.slots import memory_stats
from whet.models.memory_bank.state import LtmState
from whet.server.http import documented, documented_states
from whet.server.http.answer import json_response
from whet.server.http.errors import ApiError, invalid
from whet.server.http.generation import Generation
from whet.server.http.leaving import GONE, unless_gone
from whet.server.http.protocol import CompletionRequest
from whet.server.http.service import Service
from whet.server.sampling_params import SamplingParams

_log = logging.getLogger("whet.server")
_ONLY_READ = SamplingParams(max_tokens=0)


def memory_routes(service: Service) -> APIRouter:
    """Return the routes that make, show and delete states. There are none without --state-dir.

    Raises:
        OptionError: None of the models keeps such states.
    """
    router = APIRouter(responses=documented.STATE_ERRORS)
    if not service.settings.state_dir:
        return router
    digests = {
        one.engine.model.digest: one.model_name for one in service.engines if isinstance(one.engine.model, ServedMemory)
    }
    if not digests:
        raise OptionError("--state-dir: no model here keeps states; only models with long-term memory (ltm) do")
    files = service.states

    def described(name: str, state: LtmState) -> Response:
        stats = memory_stats(state)
        num_tokens, size = stats.pop("num_tokens"), stats.pop("state_bytes")
        del stats["layers"]
        model = digests.get(state.model)
        content = {"id": name, "object": "state", "model": model, "num_tokens": num_tokens, "bytes": size}
        return json_response({**content, "memory": stats})

    @router.post("/v1/states/{name}", **documented.exchange(CompletionRequest, documented_states.State))
    async def make(name: str, request: Request) -> Response:
        """Read a prompt, and keep what the model remembers of it under a name. Nothing is generated.

        Only the fields `prompt`, `model`, `state`, `add_special_tokens` and `cache_salt` have a meaning.
        """
        found: list[LtmState] = []
        with files.new(request, name) as path:
            async with service.intake.reading(request, CompletionRequest) as read:
                body: CompletionRequest = read.body
                if read.num_prompts != 1 or body.num_choices != 1 or body.stream:
                    raise invalid("a state is made of one prompt, without n and stream", "prompt")
                model = service.engine(body.model)
                with model.slots(1) as slots:
                    prompts = await read.prompts()
                    generation = await model.start(
                        request, body, prompts.token_ids, lambda _: _ONLY_READ, slots, on_state=found.append
                    )
            if not await unless_gone(request.receive, _ended(generation)):
                return Response(status_code=GONE)
            try:
                await asyncio.to_thread(found[0].save, path)
            except OutputError as error:
                _log.error("%s", error)
                raise ApiError(500, "the state could not be written; the server's log says why") from error
        return described(name, found[0])

    @router.get("/v1/states", responses=documented.answers(documented_states.States))
    async def states(request: Request) -> Response:
        """List the states that are kept for the caller's API key."""
        data: list[dict[str, Any]] = [
            {"id": name, "object": "state", "created": created, "file_bytes": size}
            for name, size, created in files.listed(request)
        ]
        return json_response({"object": "list", "data": data})

    @router.get("/v1/states/{name}", responses=documented.answers(documented_states.State))
    async def state(name: str, request: Request) -> Response:
        """Return the statistics of a state."""
        return described(name, await files.read(files.path(request, name), LtmState.load))

    @router.delete("/v1/states/{name}", responses=documented.answers(documented_states.Deleted))
    async def delete(name: str, request: Request) -> Response:
        """Delete a state. Requests that begin at it already go on."""
        files.path(request, name).unlink(missing_ok=True)
        return json_response({"id": name, "object": "state", "deleted": True})

    return router


async def _ended(generation: Generation) -> bool:
    """Wait until a prompt has been read."""
    try:
        async for _ in generation.deltas():
            pass
    finally:
        generation.close()
    return True
