"""whet.Engine: a language model that serves many requests at once, from a plain call, a loop or asyncio."""

import asyncio
import secrets
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast, overload

from whet.errors import OptionError, RequestError
from whet.models.families import open_model
from whet.models.step import ServedModel
from whet.server.admission import Admission, Prompt
from whet.server.assembly import Models, assemble
from whet.server.completion import Completion, Delta, join
from whet.server.delivery import AsyncStream, DeltaStream
from whet.server.loop import EngineLoop, Reservation
from whet.server.options import EngineOptions
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.sizing import explaining_lack_of_memory
from whet.server.stats import Observer, Stats
from whet.server.structure import Structure
from whet.server.text import FILE as TOKENIZER_FILE
from whet.server.text import Tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None


class Engine:
    """Serves a model: give it prompts, get completions. It computes on one thread, which it starts and `close` ends.

        with whet.Engine("path/to/model") as engine:
            print(engine.generate("The three rules are", whet.SamplingParams(max_tokens=64)).text)

    Raises TargetError where a model cannot be had, OptionError where an option does not fit, or the memory is too
    little for one sequence of max_model_len tokens.
    """

    @explaining_lack_of_memory()
    def __init__(
        self,
        model: Path | str | ServedModel,
        options: EngineOptions | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        draft: Path | str | ServedModel | None = None,
        **fields: Any,
    ) -> None:
        """Load the model and start the thread.

        Args:
            model: A Hugging Face directory, or a ServedModel, which is taken as it is.
            options: How the model is loaded and what a step may hold.
            tokenizer: That of the directory, if not given and it has one. Without any, prompts are lists of token ids
                and there is no text.
            draft: A smaller model of the same vocabulary.
            **fields: Fields of EngineOptions, as they were given before there was `options`. They are deprecated.
        """
        options = _with_fields(options or EngineOptions(), fields)
        self.name = type(model).__name__
        identity = f"{self.name} {secrets.token_hex(8)}"
        load = partial(open_model, dtype=options.dtype, weights=options.weights, kv=options.kv)
        if isinstance(model, (str, Path)):
            directory = Path(model)
            self.name = directory.resolve().name
            identity = f"{directory.resolve()} {options.dtype} {options.weights} {options.kv}"
            if tokenizer is None and (directory / TOKENIZER_FILE).exists():
                tokenizer = Tokenizer(directory)
            model = load(directory, max_model_len=options.max_model_len)
        if isinstance(draft, (str, Path)):
            draft = load(draft)
        if tokenizer is not None:
            tokenizer.check_fits(model.vocab_size)
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.max_model_len = _checked_len(options.max_model_len, model)
        self._admission = Admission(tokenizer, model.vocab_size, self.max_model_len)
        stepper = assemble(Models(model, draft, identity), options, self.max_model_len)
        self._loop = EngineLoop(stepper, capacity=options.max_num_seqs + options.max_waiting)
        self._finalizer = weakref.finalize(self, self._loop.close)  # also when the interpreter ends

    @overload  # a str is a sequence of them too, and is one prompt
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: SamplingParams | None = None
    ) -> Completion: ...
    @overload
    def generate(self, prompts: Sequence[Prompt], params: Params = None) -> list[Completion]: ...
    def generate(self, prompts: Prompt | Sequence[Prompt], params: Params = None) -> Completion | list[Completion]:
        """The completion of a prompt, or those of several, which run together; as many as you like.

        Raises RequestError for the first prompt that cannot be served, before any is run. One that fails later has the
        finish_reason "error".
        """
        requests = self._requests(prompts, params)
        streams = [self._stream(request) for request in requests]
        try:
            completions = [join(stream) for stream in streams]
        finally:
            for stream in streams:
                stream.close()
        return completions[0] if _is_one(prompts) else completions

    async def generate_async(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, cache_salt: str = ""
    ) -> Completion | list[Completion]:
        """As `generate`, within a running asyncio loop. Cancelling it aborts the requests. Raises QueueFull too."""
        streams = []
        try:
            for request in self._requests(prompts, params, cache_salt):
                streams.append(self._async_stream(request))  # noqa: PERF401 - those made must be closed if one fails
            completions = [join([delta async for delta in stream]) for stream in streams]
        finally:
            for stream in streams:
                await stream.aclose()
        return completions[0] if _is_one(prompts) else completions

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> DeltaStream:
        """The completion piece by piece. Raises RequestError at once; leaving the loop aborts the request."""
        return self._stream(self._admission.request(prompt, params))

    def stream_async(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        reservation: Reservation | None = None,
    ) -> AsyncStream:
        """The completion piece by piece, within a running asyncio loop. Closing the iterator aborts the request.

        Raises at once RequestError, QueueFull where too many wait, EngineClosed. cache_salt: only requests of the same
        salt find each other's prompts.
        """
        request = self._admission.request(prompt, params, request_id, cache_salt)
        return self._async_stream(request, reservation)

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams | None = None,
        *,
        on_delta: Callable[[Delta], None],
        request_id: str | None = None,
        cache_salt: str = "",
        reservation: Reservation | None = None,
        asyncio_loop: asyncio.AbstractEventLoop | None = None,
    ) -> str:
        """Queue a request; `on_delta` gets its pieces, and must be quick. Returns its id.

        It is called in the asyncio loop, or on the engine's thread where none is given. Raises as `stream_async`.
        """
        request = self._admission.request(prompt_ids, params, request_id, cache_salt)
        self._loop.submit(request, on_delta, reservation, asyncio_loop=asyncio_loop)
        return request.id

    def compile(self, structure: Structure) -> None:
        """Compile a structure that requests will have, so that they need not wait for it. From any thread.

        A request compiles its structure itself where this was not called, before it is queued. The structures that
        were used last are kept.

        Args:
            structure: What outputs will have to match.

        Raises:
            RequestError: It cannot be enforced; the message says why.
        """
        self._admission.guide(structure)

    def abort(self, request_id: str) -> None:
        """End a request; its last delta says "abort". Nothing happens where it has ended already."""
        self._loop.abort(request_id)

    def reserve(self) -> Reservation:
        """A place in the queue, to be used by a request or released. Raises QueueFull, EngineClosed."""
        return self._loop.reserve()

    def listen(self, observer: Observer) -> None:
        """Tell it of each token and end from now on."""
        self._loop.meter.observers.append(observer)

    def stats(self) -> Stats:
        """What the engine has done and is doing, from any thread."""
        loop, stepper = self._loop, self._loop.stepper
        scheduler, speculation = stepper.scheduler, stepper.speculation
        controller = speculation.controller if speculation is not None else None
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + loop.num_inbox,
            kv_cache_usage=scheduler.blocks.usage,
            prompt_tokens_total=stepper.num_prompt_tokens,
            generation_tokens_total=stepper.num_output_tokens,
            prefix_cache_queries=scheduler.prefix_queries,
            prefix_cache_hits=scheduler.prefix_hits,
            num_preemptions=scheduler.num_preemptions,
            num_draft_tokens=speculation.num_drafted if speculation is not None else 0,
            num_accepted_tokens=speculation.num_accepted if speculation is not None else 0,
            request_success=dict(loop.meter.ended),
            tokens_per_s=loop.meter.tokens_per_s(time.monotonic()),
            num_steps=loop.meter.num_steps,
            speculation="off" if speculation is None else "on" if controller is None or controller.is_on else "paused",
            speculation_gain=controller.gain if controller is not None else None,
        )

    @property
    def is_open(self) -> bool:
        """Whether it takes requests: until drained or closed."""
        return self._loop.is_open

    def drain(self, timeout_s: float) -> None:
        """Take no more requests; give those that are there so many seconds to end, and abort the rest."""
        self._loop.drain(timeout_s)

    def close(self) -> None:
        """Abort what is left and end the thread. The engine cannot be used any more."""
        self._finalizer()

    def _requests(self, prompts: Prompt | Sequence[Prompt], params: Params, cache_salt: str = "") -> list[Request]:
        several = cast(Sequence[Prompt], [prompts] if _is_one(prompts) else prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(several)
        if len(params) != len(several):
            raise RequestError(f"{len(several)} prompts and {len(params)} params: give one for each, or one for all")
        make = self._admission.request
        return [make(prompt, one, cache_salt=cache_salt) for prompt, one in zip(several, params, strict=True)]

    def _stream(self, request: Request) -> DeltaStream:
        stream = DeltaStream(self.abort)
        self._loop.submit(request, stream.put, is_limited=False)  # who calls waits anyway
        stream.request_id = request.id
        return stream

    def _async_stream(self, request: Request, reservation: Reservation | None = None) -> AsyncStream:
        stream = AsyncStream(self.abort)
        self._loop.submit(request, stream.put, reservation, asyncio_loop=asyncio.get_running_loop())
        stream.request_id = request.id
        return stream

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Whether it is one prompt: a text, or token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence)))


def _with_fields(options: EngineOptions, fields: dict[str, Any]) -> EngineOptions:
    """Return the options with fields that were given as keywords of Engine, which is deprecated."""
    if not fields:
        return options
    given = ", ".join(f"{name}=..." for name in fields)
    options = replace(options, **fields)  # raises TypeError for a name that is none of them
    message = f"whet.Engine(..., {given}) is deprecated: write whet.Engine(..., whet.EngineOptions({given}))"
    warnings.warn(message, DeprecationWarning, stacklevel=4)  # the caller of the decorated Engine
    return options


def _checked_len(max_model_len: int | None, model: ServedModel) -> int:
    if max_model_len is None:
        return model.max_model_len
    if not 1 <= max_model_len <= model.max_model_len:
        raise OptionError(f"max_model_len={max_model_len}: the model takes 1 to {model.max_model_len} tokens")
    return max_model_len
