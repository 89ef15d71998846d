"""What an engine counts, and who wants to be told."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from whet.server.request import FinishReason

_LOG = logging.getLogger("whet")
_WINDOW_S = 1.0


class Observer(Protocol):
    """Is told of each event, on the engine's thread: it must be quick."""

    def first_token(self, seconds: float) -> None:
        """From a request's arrival to its first token."""

    def inter_token(self, seconds: float) -> None:
        """Between two tokens of a request; several that one step gave share its time."""

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        """A request has ended: its whole time, and that before its first step."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """An engine at one moment.

    kv_cache_usage: 0 to 1. prefix_cache_queries, prefix_cache_hits: tokens looked up, and found.
    tokens_per_s: of outputs, over the last second. speculation: "off" (not asked for, or impossible), "on", or "paused"
    (measured, and slower). speculation_gain: tokens a second with drafts over those without; None until measured.
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
    """Counts on the engine's thread what `Stats` shows and observers hear."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.num_steps = 0
        self.ended: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self._recent: deque[tuple[float, int]] = deque()  # when, tokens

    def stepped(self, now: float, num_tokens: int) -> None:
        """A step gave so many tokens."""
        self.num_steps += 1
        self._recent.append((now, num_tokens))
        while self._recent[0][0] < now - 2 * _WINDOW_S:
            self._recent.popleft()

    def tokens_per_s(self, now: float) -> float:
        """Of the last second. From any thread."""
        return sum(count for when, count in self._recent.copy() if when > now - _WINDOW_S) / _WINDOW_S

    def first_token(self, seconds: float) -> None:
        self._tell(lambda observer: observer.first_token(seconds))

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._tell(lambda observer: observer.inter_token(seconds / num_tokens))

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        self.ended[reason] += 1
        self._tell(lambda observer: observer.finished(e2e_s, queue_s, reason))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        for observer in self.observers.copy():
            try:
                event(observer)
            except Exception:  # noqa: BLE001 - who watches must not harm what is watched
                _LOG.exception("an observer failed, and is told no more")
                self.observers.remove(observer)
