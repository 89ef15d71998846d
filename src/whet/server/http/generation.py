"""What the engine makes for one HTTP request, as it comes: one choice or several, brought to the event loop."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from whet.server.completion import Delta
from whet.server.engine import Engine
from whet.server.http.errors import ApiError, failed, unavailable
from whet.server.http.lifecycle import Lifecycle
from whet.server.loop import Reservation
from whet.server.sampling_params import SamplingParams

_LONG = 2048  # tokens of a prompt after which others on the event loop have their turn


@dataclass(frozen=True)
class Order:
    """One choice."""

    prompt_ids: Sequence[int]
    params: SamplingParams


class Generation:
    """The choices of one request. `close` it, whatever happened: what still runs in the engine is aborted."""

    def __init__(self, engine: Engine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._open: dict[int, str] = {}  # choice -> the engine's id of it
        self._news: list[tuple[int, Delta]] = []
        self._awake = asyncio.Event()
        self._is_cut = False

    async def start(self, orders: Sequence[Order], slots: list[Reservation], cache_salt: str) -> None:
        """Hand all to the engine, or none. Raises what the engine does. slots: one for each; taken from the list."""
        self._lifecycle.started(self)
        loop = asyncio.get_running_loop()
        try:
            for choice, order in enumerate(orders):
                self._open[choice] = self._engine.submit(
                    list(order.prompt_ids),
                    order.params,
                    on_delta=partial(self._take, choice),
                    asyncio_loop=loop,
                    cache_salt=cache_salt,
                    reservation=slots[0],
                )
                del slots[0]
                if len(order.prompt_ids) > _LONG:
                    await asyncio.sleep(0)
        except BaseException:
            self.close()
            raise

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """All that is new, with the number of its choice, until every choice has ended.

        Raises ApiError where the engine fails (500) or the server ends (503).
        """
        while self._open:
            await self._awake.wait()
            self._awake.clear()
            if self._is_cut:
                raise unavailable("the server is ending; this request took longer than the time it had left")
            news, self._news = self._news, []
            errors = [self._ended(choice, delta) for choice, delta in news]
            good = [one for one, error in zip(news, errors, strict=True) if error is None]
            if good:
                yield good
            for error in errors:
                if error is not None:
                    raise error

    def close(self) -> None:
        """Abort what has not ended."""
        self._lifecycle.ended(self)
        for request_id in self._open.values():
            self._engine.abort(request_id)
        self._open.clear()

    def cut(self) -> None:
        """Have whoever reads the deltas end with an error."""
        self._is_cut = True
        self._awake.set()

    def _take(self, choice: int, delta: Delta) -> None:
        self._news.append((choice, delta))
        self._awake.set()

    def _ended(self, choice: int, delta: Delta) -> ApiError | None:
        """Take note of a choice's end; what to say where that is none of its own."""
        if delta.finish_reason is None:
            return None
        self._open.pop(choice, None)
        if delta.finish_reason == "error":
            return failed(delta.error or "the engine failed")
        if delta.finish_reason == "abort":
            return unavailable(delta.error or "the engine ended this request")
        return None
