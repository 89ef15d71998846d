"""Provide what the routes need: places in the engine's queue, prompts, and generation."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fastapi import Request

from whet.errors import RequestError, TargetError
from whet.models.memory_bank.state import LtmState
from whet.server.engine import Engine
from whet.server.grammars import Guide
from whet.server.http.admission import Intake
from whet.server.http.errors import ApiError, as_api_errors, invalid
from whet.server.http.generation import Generation
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.models import Models
from whet.server.http.protocol import Sampling
from whet.server.http.request_checks import KEY
from whet.server.http.request_parsing import Served
from whet.server.http.settings import Settings
from whet.server.http.states import StateFiles
from whet.server.loop import Reservation
from whet.server.output_constraint import OutputConstraint
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.server.tool_formats import find_format

_MOST_COMPILING = 2  # structures at once; each takes a core


class ModelService:
    """Connect one engine with the routes of a server. Use it on the event loop only.

    Raises:
        TargetError: The engine has no tokenizer.
    """

    def __init__(
        self, engine: Engine, names: Sequence[str], settings: Settings, lifecycle: Lifecycle, states: StateFiles
    ) -> None:
        if engine.tokenizer is None:
            raise TargetError("a server needs a tokenizer: put the checkpoint's tokenizer.json beside its weights")
        self.engine = engine
        self.tokenizer: Tokenizer = engine.tokenizer
        self.settings = settings
        self.lifecycle = lifecycle
        self.tool_format = find_format(self.tokenizer.chat_template.text, settings.tool_call_parser)
        self._states = states
        self._compiling = asyncio.Semaphore(_MOST_COMPILING)
        self._most_choices = engine.options.max_num_seqs + engine.options.max_waiting
        self.served = Served(names=tuple(names), max_model_len=engine.max_model_len, vocab_size=engine.model.vocab_size)

    @property
    def model_name(self) -> str:
        """Return the name of the model in answers."""
        return self.served.names[0]

    @contextmanager
    def slots(self, count: int) -> Iterator[list[Reservation]]:
        """Reserve places in the engine's queue before any work is done. Those left in the list at the end are released.

        Raises:
            ApiError: 429 if the queue has no room now, 503 if the engine shuts down, 400 if the queue is shorter than
                `count`.
        """
        if count > self._most_choices:
            raise invalid(f"{count} choices in one request; this server takes {self._most_choices} at most", "n")
        taken: list[Reservation] = []
        try:
            with as_api_errors():
                taken.extend(self.engine.reserve() for _ in range(count))
            yield taken
        finally:
            for slot in taken:
                slot.release()

    async def start(
        self,
        request: Request,
        body: Sampling,
        prompts: Sequence[Sequence[int]],
        params: Callable[[int], SamplingParams],
        slots: list[Reservation],
        *,
        on_state: Callable[[LtmState], None] | None = None,
    ) -> Generation:
        """Submit every choice of every prompt to the engine.

        Args:
            request: The HTTP request. Its API key and its cache salt decide which cached prompts it can use.
            params: Returns the sampling parameters of a choice, given its number within a prompt.
            slots: The reservations, at least one for each choice of each prompt. Used ones are removed from the list.
            on_state: Takes what the model remembers of each prompt.

        Raises:
            ApiError: The engine refused the request, or the state at which it begins cannot be used.
        """
        by_choice = [params(choice) for choice in range(body.num_choices)]
        guide = await self._compile(body, by_choice[0].structure)
        state = None
        if (name := getattr(body, "state", None)) is not None:
            path = self._states.path(request, name)
            state = await self._states.read(path, self.engine.memory.beginning)
        generation = Generation(self.engine, self.lifecycle)
        salt = self.settings.cache_salt(request.scope.get(KEY, ""), body.cache_salt)
        with as_api_errors():
            choices = [(ids, one) for ids in prompts for one in by_choice]
            await generation.start(choices, slots, cache_salt=salt, guide=guide, state=state, on_state=on_state)
        return generation

    async def _compile(self, body: Sampling, structure: OutputConstraint | None) -> Guide | None:
        """Return the compiled structure of a request's answers, if any, while others have their turn on the event loop.

        Raises:
            ApiError: 400 where it cannot be enforced, in the name of the field that asks for it.
        """
        if structure is None:
            return None
        field = "tools" if (asked := body.structure()) is None else asked[0]
        async with self._compiling:
            try:
                return await asyncio.to_thread(self.engine.compile, structure)
            except RequestError as error:
                raise invalid(f"{field}: {error}", field.partition(".")[0], error.code) from error


class Service:
    """Connect all models of a server with its routes. Use it on the event loop only.

    Raises:
        TargetError: An engine has no tokenizer.
    """

    def __init__(self, models: Models, settings: Settings, lifecycle: Lifecycle) -> None:
        self.settings = settings
        self.lifecycle = lifecycle
        self.names = models.names
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.states = StateFiles(settings.state_dir)
        self.engines = [
            ModelService(engine, names, settings, lifecycle, self.states) for names, engine in models.engines.items()
        ]
        read = [(one.tokenizer, one.served) for one in self.engines]
        self.intake = Intake(read, list(models.artefacts), lifecycle, self._check_room)

    def engine(self, name: str | None) -> ModelService:
        """Return the engine of a name, which the intake has checked; the first one where no name is given."""
        return next(one for one in self.engines if name is None or name in one.served.names)

    def _check_room(self) -> None:
        """Raise ApiError where no engine has room for one more request: which one is asked is not known yet."""
        refusal: ApiError | None = None
        for one in self.engines:
            try:
                with one.slots(1):
                    return
            except ApiError as error:
                refusal = error
        if refusal is not None:
            raise refusal
