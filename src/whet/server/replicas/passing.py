"""Pass one request on to a replica and its answer back, to another replica if the first one dies in time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whet.server.http.errors import ApiError
from whet.server.http.events import EVENT_END, EVENTS
from whet.server.http.proxy import PassedRequest
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.routing import Spot
from whet.server.replicas.upstream import BROKEN, NOT_SENT, Headers, Upstream, answered_headers

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_MOST_BREAKS = 2  # of connections to replicas that worked on the same request
_MOST_TRIES = 8
_NOTICE_S = 1.0  # how soon the end of a process is known after its connections break
_ALONE_S = 1.0  # how long a request that may have ended a replica begins alone on another
_WHOLE_BYTES = 2**20  # a stated length up to which an answer is read to its end before it is passed on
_SENT_ONCE = "/v1/states/"  # what changes something there cannot be asked for twice


@dataclass(kw_only=True)
class Passing(PassedRequest):
    """Pass one request on to a replica of this machine.

    Attributes:
        release: Called once the body is not needed any more.
    """

    fleet: Fleet
    method: str
    path: str
    target: str
    headers: Headers
    body: bytes
    spot: Spot
    release: Callable[[], None]
    _deaths: int = 0
    _breaks: int = 0  # deaths, and connections that replicas broke off which go on
    _refused: set[int] = field(default_factory=set)
    _holds: Upstream | None = None  # whose lock for suspects this request has
    _timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Send the request until it is answered.

        Raises:
            ApiError: 500 if two replicas died of it or broke it off, 503 if none takes requests, or if it must not be
                sent twice.
        """
        for _ in range(_MOST_TRIES):
            replica = await self.fleet.choose(self.spot, self._refused)
            with replica.working():
                if self._breaks and not await self._is_its_turn(replica):
                    continue
                try:
                    is_over = await self._try(replica)
                except BROKEN as error:
                    await self._broken(replica, error)
                else:
                    if is_over:
                        return
                finally:
                    self._its_turn_ends(replica)
            if self.has_begun:
                return
            self.fleet.counts.sent_again += 1
        raise ApiError(503, "no replica could answer this request; send it again later", code="unavailable")

    async def _try(self, replica: Upstream) -> bool:
        """Ask a replica, and pass its answer on. Return False if another one is to be asked, since it refused."""
        async with await replica.ask(self.method, self.target, self.headers, self.body) as answer:
            if answer.status in (429, 503) and self._others(replica):
                self._refused.add(replica.id)
                return False
            self.is_stream = answer.content_type == EVENTS
            length = answer.content_length
            if length is not None and length <= _WHOLE_BYTES:
                content = await answer.read()
                await self._begin(answer)
                await self._piece(content, is_last=True)
                return True
            first = await answer.content.readany()
            self._its_turn_ends(replica)
            await self._begin(answer)
            await self._rest(answer, first)
            return True

    async def _rest(self, answer: "ClientResponse", piece: bytes) -> None:
        """Pass the pieces of an answer on as they come. Of events, only whole ones are: another may follow a break."""
        held = b""
        while piece:
            if self.is_stream:
                whole, end, held = (held + piece).rpartition(EVENT_END)
                piece = whole + end
            if piece:
                await self._piece(piece)
            piece = await answer.content.readany()
        await self._piece(held, is_last=True)

    async def _begin(self, answer: "ClientResponse") -> None:
        self.has_begun = True
        self.body = b""
        self.release()
        headers = answered_headers(answer)
        await self.send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _piece(self, content: bytes, *, is_last: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": content, "more_body": not is_last})

    def _others(self, replica: Upstream) -> list[Upstream]:
        """Return the replicas that have not refused the request yet."""
        return [one for one in self.fleet.taking if one.id not in self._refused and one is not replica]

    async def _broken(self, replica: Upstream, error: Exception) -> None:
        """Decide what follows after a connection broke: nothing if the request can be sent again.

        Raises:
            ApiError: The request cannot be sent again.
        """
        has_died = await _has_died(replica)
        if self.has_begun:
            self.fleet.counts.broken_streams += 1
            await self.fail(ApiError(500, "the replica that made this answer has ended", code="replica_died"))
            return
        if isinstance(error, NOT_SENT):
            return
        if self.path.startswith(_SENT_ONCE) and self.method != "GET":
            message = "the replica that worked on this request has ended; look whether it was done, and send it again"
            raise ApiError(503, message, code="replica_died")
        self._deaths += has_died
        self._breaks += 1
        if self._breaks < _MOST_BREAKS:
            return
        self.fleet.counts.given_up += 1
        if self._deaths == _MOST_BREAKS:
            message = f"{_MOST_BREAKS} replicas ended while they worked on this request; it is not sent to another one"
            raise ApiError(500, message, code="replica_died")
        message = f"the connection to a replica broke {_MOST_BREAKS} times on this request; it is not sent again"
        raise ApiError(500, message, code="connection_broken")

    async def _is_its_turn(self, replica: Upstream) -> bool:
        """Wait until no other request whose replica died or broke off begins on this one. Return whether it still runs.

        If one request ends each replica that gets it, the others are so not taken for it.
        """
        await replica.suspects.acquire()
        self._holds = replica
        if replica.ended.is_set():
            self._its_turn_ends(replica)
            return False
        self._timer = asyncio.get_running_loop().call_later(_ALONE_S, self._its_turn_ends, replica)
        return True

    def _its_turn_ends(self, replica: Upstream) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._holds is replica:
            self._holds = None
            replica.suspects.release()


async def _has_died(replica: Upstream) -> bool:
    """Return whether a replica's process has ended, once that is known."""
    try:
        await asyncio.wait_for(replica.ended.wait(), _NOTICE_S)
    except TimeoutError:
        return False
    return True
