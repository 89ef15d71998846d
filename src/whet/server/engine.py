"""Serve many requests at once with one language model: whet.Engine, for plain calls, loops and asyncio."""

import asyncio
import secrets
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, overload

from whet.core.tokenizer_files.reading import FILE as TOKENIZER_FILE
from whet.errors import OptionError, RequestError
from whet.models.families import open_with
from whet.models.memory_bank.state import LtmState
from whet.models.step import ServedModel
from whet.server.admission import Admission, Prompt
from whet.server.assembly import assemble
from whet.server.beginnings import Beginning, beginning, memory_of
from whet.server.completion import Completion, Delta, join
from whet.server.delivery import AsyncStream, DeltaStream
from whet.server.engine_memory import EngineMemory
from whet.server.grammars import Guide
from whet.server.loop import EngineLoop, Reservation
from whet.server.options import EngineOptions
from whet.server.output_constraint import OutputConstraint
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.sizing import explaining_lack_of_memory
from whet.server.stats import Observer, Stats
from whet.server.tensor_parallel.divided_model import DividedModel, open_on_ranks
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

Params = SamplingParams | Sequence[SamplingParams] | None


class Engine:
    """Serve a model. Give it prompts, and get completions. It computes on a thread of its own, which `close` ends.

    Example:
        with whet.Engine("path/to/model") as engine:
            print(engine.generate("The three rules are", whet.SamplingParams(max_tokens=64)).text)

    Raises:
        TargetError: A model cannot be loaded.
        OptionError: An option does not fit, or one sequence of max_model_len tokens does not fit into the memory.
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
            model: A Hugging Face directory, or a ServedModel that has been loaded already.
            options: How the model is loaded, and what one step may hold.
            tokenizer: The model's tokenizer. By default, the one in the directory. Without any, prompts must be lists
                of token ids, and completions have no text.
            draft: A smaller model with the same vocabulary. It proposes tokens, which the model verifies.
            **fields: Fields of EngineOptions. This is deprecated: use `options`.
        """
        options = _with_fields(options or EngineOptions(), fields)
        self.name = type(model).__name__
        self.is_demo = False
        identity = f"{self.name} {secrets.token_hex(8)}"
        if isinstance(model, (str, Path)):
            directory = Path(model)
            self.name = directory.resolve().name
            self.is_demo = directory.resolve().parent == WEIGHTS.resolve()  # a small model that comes with whet
            identity = f"{directory.resolve()} {options.dtype} {options.weights} {options.kv}"
            if tokenizer is None and (directory / TOKENIZER_FILE).exists():
                tokenizer = Tokenizer(directory)
            model = open_on_ranks(directory, options)
        elif options.tensor_parallel_size > 1:
            raise OptionError("tensor_parallel_size is for a model in a directory; this one has been loaded already")
        with ExitStack() as ending:
            if isinstance(model, DividedModel):
                ending.callback(model.close)
            if isinstance(draft, (str, Path)):
                draft = open_with(draft, replace(options, max_model_len=None))
            if tokenizer is not None:
                tokenizer.check_fits(model.vocab_size)
            self.model, self.tokenizer, self.options = model, tokenizer, options
            self.max_model_len = _checked_len(options.max_model_len, model)
            self._admission = Admission(tokenizer, model.vocab_size, self.max_model_len, model)
            stepper = assemble(model, options, self.max_model_len, draft=draft, identity=identity)
            self._loop = EngineLoop(stepper, capacity=options.max_num_seqs + options.max_waiting)
            ending.callback(self._loop.close)
            self._finalizer = weakref.finalize(self, ending.pop_all().close)  # also runs when the interpreter ends
        self.when_broken(self._loop.break_off)

    @overload  # a str is also a Sequence[str], but here it is one prompt
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: SamplingParams | None = None, *, state: LtmState | None = None
    ) -> Completion: ...
    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Params = None, *, state: LtmState | None = None
    ) -> list[Completion]: ...
    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, state: LtmState | None = None
    ) -> Completion | list[Completion]:
        """Complete one prompt or several. Any number of prompts can be given; they run together.

        Args:
            prompts: One text, one list of token ids, or a sequence of these.
            params: The sampling parameters for all prompts, or one for each.
            state: What each prompt goes on from, from `memory.read` or `memory.load`. Outputs are those after the whole
                text; penalties count the prompt and the output alone.

        Returns:
            One completion, or a list if several prompts were given. If a request fails while it runs, its completion
            has the finish_reason "error".

        Raises:
            RequestError: A prompt cannot be served. Then none is run.
        """
        completions = self._joined(self._requests(prompts, params, state=state))
        return completions[0] if _is_one(prompts) else completions

    async def generate_async(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        cache_salt: str = "",
        state: LtmState | None = None,
    ) -> Completion | list[Completion]:
        """Complete one prompt or several, as `generate` does, in a running asyncio loop.

        If the call is cancelled, its requests are aborted. Only requests with the same salt share cached prompts.

        Raises:
            RequestError: A prompt cannot be served.
            QueueFull: Too many requests are waiting.
        """
        guides: dict[OutputConstraint | None, Guide] = {}
        for one in [params] if params is None or isinstance(params, SamplingParams) else params:
            if one is not None and one.structure is not None:
                guides[one.structure] = await asyncio.to_thread(
                    self.compile, one.structure
                )  # others have the loop meanwhile
        streams = []
        try:
            for request in self._requests(prompts, params, cache_salt, guides, state):
                streams.append(self._async_stream(request))  # noqa: PERF401 - those made must be closed if one fails
            completions = [join([delta async for delta in stream]) for stream in streams]
        finally:
            for stream in streams:
                await stream.aclose()
        return completions[0] if _is_one(prompts) else completions

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, state: LtmState | None = None
    ) -> DeltaStream:
        """Return an iterator over the pieces of a completion. Leaving its loop early aborts the request.

        `state` is what the prompt goes on from, as in `generate`.

        Raises:
            RequestError: The prompt cannot be served. It is raised by this call, not by the iterator.
        """
        return self._stream(self._admission.request(prompt, params, state=state))

    def stream_async(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str = "",
        reservation: Reservation | None = None,
        state: LtmState | None = None,
    ) -> AsyncStream:
        """Return an asynchronous iterator over the pieces of a completion. Closing it aborts the request.

        Args:
            request_id: By default, the engine chooses one.
            cache_salt: Only requests with the same salt share cached prompts.
            reservation: A place in the queue that was reserved before.
            state: What the prompt goes on from, as in `generate`.

        Raises:
            RequestError: The prompt cannot be served. This call raises the errors, not the iterator.
            QueueFull: Too many requests are waiting.
            EngineClosed: The engine takes no more requests.
        """
        request = self._admission.request(prompt, params, request_id, cache_salt, state=state)
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
        guide: Guide | None = None,
        state: LtmState | Beginning | None = None,
        on_state: Callable[[LtmState], None] | None = None,
    ) -> str:
        """Queue a request whose pieces go to a callback, and return its id. Errors are those of `stream_async`.

        Args:
            on_delta: Called with each piece of the output. It must be quick.
            request_id: By default, the engine chooses one.
            cache_salt: Only requests with the same salt share cached prompts.
            reservation: A place in the queue that was reserved before.
            asyncio_loop: The loop in which `on_delta` is called. By default, the engine's thread calls it.
            guide: What `compile` returned for the structure of `params`, so that nothing is compiled here.
            state: What the prompt goes on from, as in `generate`.
            on_state: Called once, on the engine's thread, with what the model remembers of the prompt.
        """
        request = self._admission.request(prompt_ids, params, request_id, cache_salt, guide, state)
        if on_state is not None:
            memory_of(self.model)
            request.on_state = on_state
        self._loop.submit(request, on_delta, reservation, asyncio_loop=asyncio_loop)
        return request.id

    def compile(self, structure: OutputConstraint) -> Guide:
        """Compile a structure that requests will have, so that they need not wait for it. From any thread.

        A request compiles its structure itself where this was not called, before it is queued: `stream_async` would
        hold up its asyncio loop. The structures that were used last are kept.

        Returns:
            The compiled structure, which `submit` takes for any number of requests.

        Raises:
            RequestError: It cannot be enforced; the message says why.
        """
        return self._admission.guide(structure)

    def abort(self, request_id: str) -> None:
        """End a request. Its last delta has the finish_reason "abort". If it has ended already, nothing happens."""
        self._loop.abort(request_id)

    def reserve(self) -> Reservation:
        """Reserve a place in the queue. Use it for a request, or release it.

        Raises:
            QueueFull: Too many requests are waiting.
            EngineClosed: The engine takes no more requests.
        """
        return self._loop.reserve()

    def listen(self, observer: Observer) -> None:
        """Report each token and the end of each request to an observer from now on."""
        self._loop.meter.observers.append(observer)

    def when_broken(self, tell: Callable[[str], None]) -> None:
        """Call `tell` once, from any thread, with what happened, where the engine can compute nothing any more.

        That is where one of several processes ends (tensor_parallel_size). All requests then end with an error.
        """
        if isinstance(self.model, DividedModel):
            self.model.listen(tell)

    def stats(self) -> Stats:
        """Return the engine's counts and current state. Any thread may call this."""
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
    def memory(self) -> EngineMemory:
        """Return what reads, loads and shows the long-term memory of the model, if it has one."""
        return EngineMemory(self.model, self._admission, self._loop, self._joined)

    @property
    def is_open(self) -> bool:
        """Return whether the engine takes requests. It does until it is drained or closed."""
        return self._loop.is_open

    def ping(self, timeout_s: float) -> None:
        """Wait until the engine's thread answers, which it does between two steps. Any other thread may call this.

        Raises:
            TimeoutError: It has not answered within `timeout_s` seconds.
            EngineClosed: The engine has been closed.
        """
        self._loop.ping(timeout_s)

    def drain(self, timeout_s: float) -> None:
        """Take no more requests, wait up to `timeout_s` seconds for the present ones, and abort the rest."""
        self._loop.drain(timeout_s)

    def close(self) -> None:
        """Abort all requests and end the thread. The engine cannot be used afterwards."""
        self._finalizer()

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        cache_salt: str = "",
        guides: Mapping[OutputConstraint | None, Guide] = MappingProxyType({}),
        state: LtmState | None = None,
    ) -> list[Request]:
        several = cast(Sequence[Prompt], [prompts] if _is_one(prompts) else prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(several)
        if len(params) != len(several):
            raise RequestError(f"{len(several)} prompts and {len(params)} params: give one for each, or one for all")
        make, start = self._admission.request, None if state is None else beginning(self.model, state)
        return [
            make(prompt, one, cache_salt=cache_salt, guide=guides.get(one.structure), state=start)
            for prompt, one in zip(several, params, strict=True)
        ]

    def _joined(self, requests: list[Request]) -> list[Completion]:
        streams = [self._stream(request) for request in requests]
        try:
            return [join(stream) for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def _stream(self, request: Request) -> DeltaStream:
        stream = DeltaStream(self.abort)
        self._loop.submit(request, stream.put, is_limited=False)  # the caller waits anyway
        stream.request_id = request.id
        return stream

    def _async_stream(self, request: Request, reservation: Reservation | None = None) -> AsyncStream:
        stream = AsyncStream(self.abort)
        self._loop.submit(request, stream.put, reservation, asyncio_loop=asyncio.get_running_loop())
        stream.request_id = request.id
        return stream

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Return whether `prompts` is one prompt: a text, or a list of token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence)))


def _with_fields(options: EngineOptions, fields: dict[str, Any]) -> EngineOptions:
    """Return the options, changed by the deprecated keywords of Engine."""
    if not fields:
        return options
    given = ", ".join(f"{name}=..." for name in fields)
    options = replace(options, **fields)  # raises TypeError for an unknown name
    message = f"whet.Engine(..., {given}) is deprecated: write whet.Engine(..., whet.EngineOptions({given}))"
    warnings.warn(message, DeprecationWarning, stacklevel=4)  # the caller of the decorated Engine
    return options


def _checked_len(max_model_len: int | None, model: ServedModel) -> int:
    if max_model_len is None:
        return model.max_model_len
    if not 1 <= max_model_len <= model.max_model_len:
        raise OptionError(f"max_model_len={max_model_len}: the model takes 1 to {model.max_model_len} tokens")
    return max_model_len
