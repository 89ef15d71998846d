"""An engine without a model: it says the same words to everyone, when and as long as a test lets it."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from whet.errors import EngineClosed, QueueFull
from whet.server.completion import Delta
from whet.server.grammars import Grammars, Guide
from whet.server.options import EngineOptions
from whet.server.output_constraint import OutputConstraint
from whet.server.request import TokenLogprobs
from whet.server.sampling_params import SamplingParams
from whet.server.stats import Observer, Stats
from whet.server.text import Tokenizer

TOKENIZER = Tokenizer(Path(__file__).parents[3] / "src/whet/workloads/weights/docs-gpt")
WORDS = " the quick brown fox 🙂 jumps over the lazy dog"
WORD_IDS = TOKENIZER.encode(WORDS)


@dataclass
class Asked:
    """One request as the engine got it."""

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    cache_salt: str
    on_delta: Callable[[Delta], None]
    detokenizer: Any = field(default_factory=TOKENIZER.detokenizer)
    num_made: int = 0


class FakeEngine:
    """held: nothing is made until `step` or `let_go`. failing: after so many tokens. capacity: requests in all."""

    name = "fake"
    is_demo = True

    def __init__(self) -> None:
        self.tokenizer = TOKENIZER
        self.observers: list[Observer] = []
        self.grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
        self.reset()

    def reset(self) -> None:
        """As new, but for who listens."""
        self.held = False
        self.failing: int | None = None
        self.capacity = 320
        self.max_model_len = 512
        self.num_cached = 0
        self.model = SimpleNamespace(vocab_size=TOKENIZER.vocab_size)
        self.options = EngineOptions(max_num_seqs=64, max_waiting=256)
        self.asked: list[Asked] = []
        self.aborted: list[str] = []
        self.running: dict[str, Asked] = {}
        self.num_reserved = 0
        self.is_open = True
        self.ended = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.num_generated = 0
        self._ids = itertools.count()
        self._changed = threading.Condition()

    def reserve(self) -> "FakeReservation":
        with self._changed:
            if not self.is_open:
                raise EngineClosed("the engine is shutting down")
            if len(self.running) + self.num_reserved >= self.capacity:
                raise QueueFull("too many requests wait")
            self.num_reserved += 1
        return FakeReservation(self)

    def release(self) -> None:
        with self._changed:
            self.num_reserved -= 1
            self._changed.notify_all()

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        on_delta: Callable[[Delta], None],
        asyncio_loop: asyncio.AbstractEventLoop,
        cache_salt: str = "",
        reservation: "FakeReservation",
        guide: Guide | None = None,
        state: None = None,
        on_state: None = None,
    ) -> str:
        params.check(self.model.vocab_size)

        def in_loop(delta: Delta) -> None:
            with suppress(RuntimeError):  # the loop is closed
                asyncio_loop.call_soon_threadsafe(on_delta, delta)

        asked = Asked(f"request-{next(self._ids)}", prompt_ids, params, cache_salt, in_loop)
        with self._changed:
            reservation.release()
            self.asked.append(asked)
            self.running[asked.id] = asked
            self._changed.notify_all()
        if not self.held:
            threading.Thread(target=self._run, args=(asked,), daemon=True).start()
        return asked.id

    def compile(self, structure: OutputConstraint) -> Guide:
        """As the engine does. What the fake says does not follow it."""
        return self.grammars.guide(structure)

    def abort(self, request_id: str) -> None:
        with self._changed:
            if self.running.pop(request_id, None) is not None:
                self.aborted.append(request_id)
                self._changed.notify_all()

    def step(self, num_steps: int = 1) -> None:
        """So many tokens for everyone."""
        for _ in range(num_steps):
            for asked in list(self.running.values()):
                self._make(asked)

    def let_go(self) -> None:
        """Finish everything, and hold nothing any more."""
        self.held = False
        while self.running:
            self.step()

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 10) -> None:
        """Until it is so; fails after a while."""
        with self._changed:
            assert self._changed.wait_for(condition, limit_s), "waited in vain"

    def wait_running(self, count: int) -> None:
        self.wait_for(lambda: len(self.running) == count)

    def wait_idle(self) -> None:
        """Until no request runs and no place is reserved: the server may still read what a client left behind."""
        self.wait_for(lambda: not self.running and self.num_reserved == 0)

    def listen(self, observer: Observer) -> None:
        self.observers.append(observer)

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self.running),
            num_waiting=3,
            kv_cache_usage=0.25,
            prompt_tokens_total=sum(len(asked.prompt_ids) for asked in self.asked),
            generation_tokens_total=self.num_generated,
            prefix_cache_queries=40,
            prefix_cache_hits=16,
            num_preemptions=2,
            num_draft_tokens=9,
            num_accepted_tokens=7,
            request_success=dict(self.ended),
            tokens_per_s=12.5,
        )

    def drain(self, timeout_s: float) -> None:
        self.is_open = False

    def close(self) -> None:
        self.is_open = False

    def _run(self, asked: Asked) -> None:
        while asked.id in self.running:
            self._make(asked)

    def _make(self, asked: Asked) -> None:
        params, number = asked.params, asked.num_made
        delta = Delta(asked.id, num_prompt_tokens=len(asked.prompt_ids), num_cached_tokens=self.num_cached)
        if number == 0 and params.prompt_logprobs is not None:
            delta.prompt_logprobs = [None, *(logprobs(id, params.prompt_logprobs) for id in asked.prompt_ids[1:])]
        if self.failing == number:
            delta.finish_reason, delta.error = "error", "the fake fails on purpose"
        elif params.max_tokens == 0:
            delta.finish_reason = "length"
        else:
            token_id = WORD_IDS[number % len(WORD_IDS)]
            asked.num_made += 1
            self.num_generated += 1
            delta.token_ids, delta.text = [token_id], asked.detokenizer.add([token_id])
            if params.logprobs is not None:
                delta.logprobs = [logprobs(token_id, params.logprobs)]
            most = self.max_model_len - len(asked.prompt_ids)
            if token_id in params.stop_token_ids:
                delta.finish_reason = "stop"
            elif asked.num_made == (params.max_tokens or most):
                delta.finish_reason = "length"
                delta.text += asked.detokenizer.finish()
        self._send(asked, delta)

    def _send(self, asked: Asked, delta: Delta) -> None:
        with self._changed:
            if asked.id not in self.running:
                return
            if delta.finish_reason is not None:
                del self.running[asked.id]
                self.ended[delta.finish_reason] += 1
            self._changed.notify_all()
        for observer in self.observers:
            if asked.num_made == 1:
                observer.first_token(0.02)
            else:
                observer.inter_token(0.004)
            if delta.finish_reason is not None:
                observer.finished(0.3, 0.01, delta.finish_reason)
        asked.on_delta(delta)


class FakeReservation:
    def __init__(self, engine: FakeEngine) -> None:
        self._engine: FakeEngine | None = engine

    def release(self) -> None:
        if self._engine is not None:
            self._engine.release()
            self._engine = None


def logprobs(token_id: int, count: int) -> TokenLogprobs:
    """The token itself is the most probable one; -0.1 and so on downwards."""
    others = [(token_id + 7 * i) % TOKENIZER.vocab_size for i in range(count)]
    return TokenLogprobs(token_id, -0.1, tuple((other, -0.1 - i) for i, other in enumerate(others)))
