"""Count what an engine does, and report it to observers."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from whet.server.request import FinishReason

_LOG = logging.getLogger("whet")
_WINDOW_S = 1.0


class Observer(Protocol):
    """Take in the events of an engine. The engine's thread calls it, so it must be quick."""

    def first_token(self, seconds: float) -> None:
        """Take in the time from a request's arrival to its first token."""

    def inter_token(self, seconds: float) -> None:
        """Take in the time between two tokens of a request. Several tokens of one step share its time equally."""

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        """Take in the end of a request, with its total time and its time in the queue."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Describe an engine at one moment.

    Attributes:
        kv_cache_usage: The share of the KV cache in use, 0 to 1.
        prompt_tokens_total: Tokens of prompts that were computed.
        prefix_cache_queries: Prompt tokens that were looked up in the prefix cache.
        prefix_cache_hits: Prompt tokens that were found there.
        num_accepted_tokens: Accepted draft tokens.
        request_success: The number of ended requests by finish reason.
        tokens_per_s: Generated tokens per second, over the last second.
        speculation: "on", "paused" (measured to be slower) or "off" (not wanted, or not possible).
        speculation_gain: Tokens per second with drafts divided by those without, or None until measured.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    prompt_tokens_total: int
    generation_tokens_total: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_draft_tokens: int
    num_accepted_tokens: int
    request_success: Mapping[str, int]
    tokens_per_s: float
    num_steps: int = 0
    speculation: str = "off"
    speculation_gain: float | None = None


class Meter:
    """Count events for `Stats`, and pass them on to observers. Only the engine's thread may report events."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.num_steps = 0
        self.ended: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self._recent: deque[tuple[float, int]] = deque()  # the time and the new tokens of recent steps

    def stepped(self, now: float, num_tokens: int) -> None:
        self.num_steps += 1
        self._recent.append((now, num_tokens))
        while self._recent[0][0] < now - 2 * _WINDOW_S:
            self._recent.popleft()

    def tokens_per_s(self, now: float) -> float:
        """Return the tokens per second over the last second. Any thread may call this."""
        return sum(count for when, count in self._recent.copy() if when > now - _WINDOW_S) / _WINDOW_S

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        self.ended[reason] += 1
        self.tell(lambda observer: observer.finished(e2e_s, queue_s, reason))

    def tell(self, event: Callable[[Observer], None]) -> None:
        """Report an event to the observers, by the method that `event` calls."""
        for observer in self.observers.copy():
            try:
                event(observer)
            except Exception:  # noqa: BLE001 - a failing observer must not stop the engine
                _LOG.exception("an observer failed and gets no more events")
                self.observers.remove(observer)
