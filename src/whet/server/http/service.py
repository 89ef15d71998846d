"""What the routes work with: admission, tokens, and the engine's work for a request."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fastapi import Request

from whet.errors import EngineClosed, QueueFull, RequestError, TargetError
from whet.server.engine import Engine
from whet.server.http.errors import ApiError, invalid, queue_full, unavailable
from whet.server.http.generation import Generation, Mailbox, Order
from whet.server.http.guard import KEY
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.protocol import Message, Sampling
from whet.server.http.settings import Settings
from whet.server.loop import Reservation
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer

_SHORT = 4096  # characters that are tokenised at once; longer texts in a thread, so that others go on meanwhile


class Service:
    """One engine behind one server. On the event loop only. Raises TargetError where it has no tokenizer."""

    def __init__(self, engine: Engine, settings: Settings, lifecycle: Lifecycle) -> None:
        if engine.tokenizer is None:
            raise TargetError("a server needs a tokenizer: put the checkpoint's tokenizer.json beside its weights")
        self.engine = engine
        self.tokenizer: Tokenizer = engine.tokenizer
        self.settings = settings
        self.lifecycle = lifecycle
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self._most_choices = engine.options.max_num_seqs + engine.options.max_waiting
        self._mailbox: Mailbox | None = None

    @property
    def model_name(self) -> str:
        return self.settings.served_names[0]

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) unless this is what is served. None: whatever is."""
        if name is not None and name not in self.settings.served_names:
            served = ", ".join(self.settings.served_names)
            raise ApiError(
                404, f"there is no model {name!r} here, but: {served}", param="model", code="model_not_found"
            )

    @contextmanager
    def slots(self, count: int) -> Iterator[list[Reservation]]:
        """Places in the engine's queue, before any work is done. Those left in the list at the end are given back.

        Raises ApiError: 429 where the queue has no room, 503 where the engine ends, 400 where it never has as many.
        """
        if count > self._most_choices:
            raise invalid(f"{count} choices in one request; this server takes {self._most_choices} at most", "n")
        taken: list[Reservation] = []
        try:
            try:
                taken.extend(self.engine.reserve() for _ in range(count))
            except QueueFull as error:
                raise queue_full(str(error)) from error
            except EngineClosed as error:
                raise unavailable(str(error)) from error
            yield taken
        finally:
            for slot in taken:
                slot.release()

    async def prompt_ids(self, prompt: str | Sequence[int], *, add_special: bool = True) -> list[int]:
        """The tokens of a prompt. Raises ApiError (400) for ids that are none, and for no tokens at all."""
        if isinstance(prompt, str):
            ids = await self.encode(prompt, add_special=add_special)
        else:
            ids = list(prompt)
            unknown = max(ids, default=0)
            if unknown >= self.engine.model.vocab_size:
                raise invalid(
                    f"the prompt has token {unknown}; the model's go up to {self.engine.model.vocab_size - 1}", "prompt"
                )
        if not ids and self.tokenizer.bos_id is not None:
            ids = [self.tokenizer.bos_id]
        if not ids:
            raise invalid("the prompt is empty, and this model has no token to begin with", "prompt")
        return ids

    def text(self, prompt: str | Sequence[int]) -> str:
        """A prompt as it reads, special tokens included."""
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt, skip_special=False)

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Raises RequestError for text that is not Unicode."""
        if len(text) <= _SHORT:
            return self.tokenizer.encode(text, add_special)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special)

    def conversation(
        self, messages: Sequence[Message], *, add_generation_prompt: bool | None, variables: dict[str, object] | None
    ) -> str:
        """As the model's template puts it. Raises RequestError with what it says against the messages."""
        read = [message.as_template_reads() for message in messages]
        return self.tokenizer.chat(read, add_generation_prompt is not False, variables)

    def check_length(self, num_prompt: int, max_tokens: int | None) -> None:
        """Raises ApiError (400) where prompt and answer are longer than the model can take."""
        most = self.engine.max_model_len
        wanted = num_prompt + (1 if max_tokens is None else max_tokens)
        if wanted > most:
            said = f"{num_prompt} in the prompt" + (f" and {max_tokens} to be made" if max_tokens else "")
            raise invalid(
                f"the model takes {most} tokens, and this asks for {said}", "prompt", code="context_length_exceeded"
            )

    def start(
        self,
        request: Request,
        body: Sampling,
        prompts: Sequence[Sequence[int]],
        params: Callable[[int], SamplingParams],
        slots: list[Reservation],
    ) -> Generation:
        """Hand every choice of every prompt to the engine. params: of a choice, by its number within a prompt."""
        by_choice = [params(choice) for choice in range(body.num_choices)]
        if self._mailbox is None:
            self._mailbox = Mailbox(asyncio.get_running_loop())
        generation = Generation(self.engine, self._mailbox, self.lifecycle)
        salt = self.settings.cache_salt(request.scope.get(KEY, ""), body.cache_salt)
        try:
            generation.start([Order(ids, one) for ids in prompts for one in by_choice], slots, salt)
        except QueueFull as error:
            raise queue_full(str(error)) from error
        except EngineClosed as error:
            raise unavailable(str(error)) from error
        except RequestError as error:
            raise invalid(str(error)) from error
        return generation
