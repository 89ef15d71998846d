"""Bring what the engine generates for one HTTP request, in one choice or several, to the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from whet.server.completion import Delta
from whet.server.engine import Engine
from whet.server.grammars import CANNOT_GO_ON
from whet.server.http.errors import ApiError, failed, invalid, unavailable
from whet.server.http.lifecycle import Lifecycle
from whet.server.loop import Reservation
from whet.server.sampling_params import SamplingParams

_LONG = 2048  # after a prompt of more tokens, other tasks on the event loop may run


class Generation:
    """Follow the choices of one request in the engine. Always `close` it: this aborts the choices that still run."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._open: dict[int, str] = {}  # from the number of a choice to the engine's id for it
        self._news: list[tuple[int, Delta]] = []
        self._awake = asyncio.Event()
        self._is_cut = False

    async def start(
        self, choices: Sequence[tuple[Sequence[int], SamplingParams]], slots: list[Reservation], **common: Any
    ) -> None:
        """Submit all choices to the engine, or none.

        Args:
            slots: At least one reservation for each choice. Used ones are removed from the list.
            **common: Arguments of `Engine.submit` that all choices have in common.

        Raises:
            RequestError: The engine refused one of the choices.
        """
        self._lifecycle.started(self.cut)
        loop = asyncio.get_running_loop()
        try:
            for choice, (prompt_ids, params) in enumerate(choices):
                take = partial(self._take, choice)
                self._open[choice] = self._engine.submit(
                    list(prompt_ids), params, on_delta=take, asyncio_loop=loop, reservation=slots[0], **common
                )
                del slots[0]
                if len(prompt_ids) > _LONG:
                    await asyncio.sleep(0)
        except BaseException:
            self.close()
            raise

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield the new deltas, each with the number of its choice, until every choice has ended.

        Raises:
            ApiError: 400 if the structure cannot go on, 500 if the engine fails, 503 if the server shuts down.
        """
        while self._open:
            await self._awake.wait()
            self._awake.clear()
            if self._is_cut:
                raise unavailable(
                    "the server is shutting down, and this request was not done in time; send it again later"
                )
            news, self._news = self._news, []
            errors = [self._ended(choice, delta) for choice, delta in news]
            good = [one for one, error in zip(news, errors, strict=True) if error is None]
            if good:
                yield good
            for error in errors:
                if error is not None:
                    raise error

    def close(self) -> None:
        self._lifecycle.ended(self.cut)
        for request_id in self._open.values():
            self._engine.abort(request_id)
        self._open.clear()

    def cut(self) -> None:
        """Make `deltas` raise an error: the server shuts down."""
        self._is_cut = True
        self._awake.set()

    def _take(self, choice: int, delta: Delta) -> None:
        self._news.append((choice, delta))
        self._awake.set()

    def _ended(self, choice: int, delta: Delta) -> ApiError | None:
        """Note the end of a choice, if this delta is its last. Return an error if it failed or was aborted."""
        if delta.finish_reason is None:
            return None
        self._open.pop(choice, None)
        if delta.finish_reason == "error":
            if delta.error is not None and delta.error.startswith(CANNOT_GO_ON):
                return invalid(delta.error, code="invalid_structure")
            return failed(delta.error or "the engine failed")
        if delta.finish_reason == "abort":
            return unavailable(delta.error or "the engine ended this request")
        return None
