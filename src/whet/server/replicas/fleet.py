"""Hold the replicas that take requests, and find one for each request."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from whet.server.http.errors import ApiError, unavailable
from whet.server.replicas.routing import Reason, Router, Spot
from whet.server.replicas.upstream import Upstream

_PATIENCE_S = 30.0  # how long a request waits for a replica while none takes any


@dataclass
class Counts:
    """Count what the proxy does.

    Attributes:
        chosen: Requests by the reason for which their replica was chosen.
        deaths: Replicas that ended without being asked to, by number.
        sent_again: Requests that were sent to another replica, since the first one died or refused them.
        broken_streams: Streams that ended with an error, since their replica died.
        given_up: Requests on which two replicas died.
        updates: Replicas that a rolling update replaced.
    """

    chosen: dict[Reason, int] = field(default_factory=lambda: {"prefix": 0, "ring": 0, "load": 0})
    deaths: dict[int, int] = field(default_factory=dict)
    sent_again: int = 0
    broken_streams: int = 0
    given_up: int = 0
    updates: int = 0


class Fleet:
    """Hold one replica for each number, or none while it is being started. Use it on the event loop only."""

    def __init__(self, num_replicas: int, *, patience_s: float = _PATIENCE_S) -> None:
        self.num_replicas = num_replicas
        self.counts = Counts(deaths=dict.fromkeys(range(num_replicas), 0))
        self._router = Router(num_replicas)
        self._patience_s = patience_s
        self._here: dict[int, Upstream] = {}
        self._changed = asyncio.Condition()

    @property
    def all(self) -> list[Upstream]:
        """Return the replicas that run, in the order of their numbers."""
        return [self._here[number] for number in sorted(self._here)]

    @property
    def taking(self) -> list[Upstream]:
        return [one for one in self.all if one.is_taking and not one.ended.is_set()]

    async def put(self, one: Upstream) -> None:
        """Let a replica take requests, in the place of the one that has its number."""
        self._here[one.number] = one
        async with self._changed:
            self._changed.notify_all()

    def remove(self, one: Upstream) -> None:
        """Let a replica take no requests any more."""
        one.is_taking = False
        if self._here.get(one.number) is one:
            del self._here[one.number]

    async def choose(self, spot: Spot, without: Collection[int] = ()) -> Upstream:
        """Return the replica for a request, once there is one that takes any.

        Args:
            without: The ids of those that are not wanted, unless there are no others.

        Raises:
            ApiError: 503 if none takes requests for a while.
        """
        if not self.taking:
            await self._some()
        found = self.taking
        others = [one for one in found if one.id not in without]
        chosen, reason = self._router.choose(spot, others or found)
        self.counts.chosen[reason] += 1
        self._router.sent(spot, chosen)
        return chosen

    async def _some(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s), self._changed:
                await self._changed.wait_for(lambda: bool(self.taking))
        except TimeoutError:
            raise none_runs() from None


def none_runs() -> ApiError:
    """Return the error for a request that no replica takes."""
    return unavailable("no replica of the model is running just now; send this request again later")
