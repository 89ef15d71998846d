"""What became of one request."""

from dataclasses import dataclass
from enum import StrEnum

from whet.load_test.trace import Arrival


class Failure(StrEnum):
    """Kinds of failure other than an HTTP status, of which each is a kind of its own, as "HTTP 500"."""

    REFUSED = "429 refused"  # too many requests wait: counted apart from what is broken
    CONNECT = "cannot connect"
    BROKEN = "connection broken"
    TIMEOUT = "timed out"
    IN_STREAM = "error in the stream"
    CUT_SHORT = "answer cut short"
    NO_STREAM = "no event stream"
    UNFINISHED = "ended before it was answered"


@dataclass(slots=True)
class Answer:
    """What a server gave for one request; times on one clock, in seconds.

    token_s: when each chunk with tokens came. num_output: as the server counts it in `usage`, else the chunks.
    """

    sent_s: float
    token_s: list[float]
    num_output: int = 0
    has_usage: bool = False
    failure: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One request of a replay; times in seconds since the replay began.

    start_s: from when its latencies count. In an open loop that is its planned time, so that a generator that falls
    behind cannot flatter the server; where the number in flight is capped, it is when it was sent.
    """

    arrival: Arrival
    start_s: float
    sent_s: float
    token_s: tuple[float, ...] = ()
    num_output: int = 0
    has_usage: bool = False
    failure: str = ""
    detail: str = ""

    @property
    def is_answered(self) -> bool:
        return not self.failure

    @property
    def lateness_s(self) -> float:
        """How long after its planned time it was sent."""
        return self.sent_s - self.arrival.at_s

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return self.token_s[0] - self.start_s if self.is_answered and self.token_s else None

    @property
    def e2e_s(self) -> float | None:
        """Time to the last token."""
        return self.token_s[-1] - self.start_s if self.is_answered and self.token_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (E2E - TTFT) / (n - 1); None for an answer of one token."""
        if self.ttft_s is None or self.e2e_s is None or self.num_output < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_output - 1)

    @property
    def inter_token_s(self) -> list[float]:
        """Times between successive chunks. A chunk holds one token, unless the server speculates or bundles."""
        if not self.is_answered:
            return []
        return [after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)]
