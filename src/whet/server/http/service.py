"""What the routes work with: admission, tokens, and the engine's work for a request."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fastapi import Request

from whet.errors import TargetError
from whet.server.engine import Engine
from whet.server.http.errors import ApiError, as_api_errors, invalid
from whet.server.http.generation import Generation, Order
from whet.server.http.intake import Intake
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.models import Models
from whet.server.http.protocol import Sampling
from whet.server.http.reading import Served
from whet.server.http.request_checks import KEY
from whet.server.http.settings import Settings
from whet.server.loop import Reservation
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer


class ModelService:
    """One engine behind a server. On the event loop only. Raises TargetError where it has no tokenizer."""

    def __init__(self, engine: Engine, names: Sequence[str], settings: Settings, lifecycle: Lifecycle) -> None:
        if engine.tokenizer is None:
            raise TargetError("a server needs a tokenizer: put the checkpoint's tokenizer.json beside its weights")
        self.engine = engine
        self.tokenizer: Tokenizer = engine.tokenizer
        self.settings = settings
        self.lifecycle = lifecycle
        self._most_choices = engine.options.max_num_seqs + engine.options.max_waiting
        self.served = Served(names=tuple(names), max_model_len=engine.max_model_len, vocab_size=engine.model.vocab_size)

    @property
    def model_name(self) -> str:
        return self.served.names[0]

    def check_room(self) -> None:
        """Raises ApiError where the engine's queue has no room for one more request (429), or the engine ends (503)."""
        with self.slots(1):
            pass

    @contextmanager
    def slots(self, count: int) -> Iterator[list[Reservation]]:
        """Places in the engine's queue, before any work is done. Those left in the list at the end are given back.

        Raises ApiError: 429 where the queue has no room, 503 where the engine ends, 400 where it never has as many.
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
    ) -> Generation:
        """Hand every choice of every prompt to the engine. params: of a choice, by its number within a prompt."""
        by_choice = [params(choice) for choice in range(body.num_choices)]
        generation = Generation(self.engine, self.lifecycle)
        salt = self.settings.cache_salt(request.scope.get(KEY, ""), body.cache_salt)
        with as_api_errors():
            await generation.start([Order(ids, one) for ids in prompts for one in by_choice], slots, salt)
        return generation


class Service:
    """All models behind one server. On the event loop only. Raises TargetError where an engine has no tokenizer."""

    def __init__(self, models: Models, settings: Settings, lifecycle: Lifecycle) -> None:
        self.settings = settings
        self.lifecycle = lifecycle
        self.artefacts = models.artefacts
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.engines = [ModelService(engine, names, settings, lifecycle) for names, engine in models.engines.items()]
        read = [(one.tokenizer, one.served) for one in self.engines]
        self.intake = Intake(read, list(models.artefacts), lifecycle, self._check_room)

    @property
    def names(self) -> list[str]:
        """Return every name that a request may call a model by."""
        return [*(name for one in self.engines for name in one.served.names), *self.artefacts]

    def engine(self, name: str | None) -> ModelService:
        """Return the engine of a name, which the intake has checked; the first one where no name is given."""
        return next(one for one in self.engines if name is None or name in one.served.names)

    def _check_room(self) -> None:
        """Raise ApiError where no engine has room for one more request: which one is asked is not known yet."""
        for place, one in enumerate(self.engines):
            try:
                one.check_room()
            except ApiError:
                if place == len(self.engines) - 1:
                    raise
            else:
                return
