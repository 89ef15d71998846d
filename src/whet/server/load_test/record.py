"""Describe the outcome of one request."""

from dataclasses import dataclass
from enum import StrEnum

from whet.server.load_test.trace import Arrival


class Failure(StrEnum):
    """List the kinds of failure. Besides these, each HTTP status is a kind of its own, such as "HTTP 500"."""

    REFUSED = "429 refused"  # too many requests are waiting; counted apart from other failures
    CONNECT = "cannot connect"
    BROKEN = "connection broken"
    TIMEOUT = "timed out"
    IN_STREAM = "error in the stream"
    CUT_SHORT = "answer cut short"
    NO_STREAM = "no event stream"
    UNFINISHED = "ended before it was answered"


@dataclass(slots=True)
class Answer:
    """Hold a server's answer to one request. Times are in seconds on the client's clock.

    Attributes:
        token_s: When each chunk with tokens arrived.
        num_output: The number of tokens in the server's `usage`, else the number of chunks.
        failure: The kind of failure, or "".
    """

    sent_s: float
    token_s: list[float]
    num_output: int = 0
    has_usage: bool = False
    failure: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Hold one request of a replay, with times in seconds since it began. See Answer for the fields of the same names.

    Attributes:
        start_s: The time from which latencies are counted. In an open loop, this is the planned time, so that a late
            generator cannot make the server look faster. With a limit on requests in flight, it is `sent_s`.
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
        """Return how many seconds after its planned time the request was sent."""
        return self.sent_s - self.arrival.at_s

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first token in seconds, or None if the request failed."""
        return self.token_s[0] - self.start_s if self.is_answered and self.token_s else None

    @property
    def e2e_s(self) -> float | None:
        """Return the time to the last token in seconds, or None if the request failed."""
        return self.token_s[-1] - self.start_s if self.is_answered and self.token_s else None

    @property
    def tpot_s(self) -> float | None:
        """Return the seconds per output token after the first, (E2E - TTFT) / (n - 1), or None for one token."""
        if self.ttft_s is None or self.e2e_s is None or self.num_output < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_output - 1)

    @property
    def inter_token_s(self) -> list[float]:
        """Return the seconds between successive chunks. A chunk is one token, unless the server bundles several."""
        if not self.is_answered:
            return []
        return [after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)]
