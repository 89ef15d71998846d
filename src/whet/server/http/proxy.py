"""Stand before replicas: what the proxy of this machine's replicas and the server before Ray's have in common."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from whet.server.http.body import content_of
from whet.server.http.cors import with_origins
from whet.server.http.errors import ApiError, unavailable
from whet.server.http.events import error_events
from whet.server.http.leaving import unless_gone
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_checks import RequestChecks
from whet.server.http.settings import Settings

Own = Callable[[Headers], Awaitable[Response]]

_log = logging.getLogger("whet.server")


@dataclass(kw_only=True)
class PassedRequest(ABC):
    """Pass one request on to a replica.

    Attributes:
        send: Sends the answer to the client, as ASGI has it.
        has_begun: Whether the client has got something of the answer.
        is_stream: Whether the answer that has begun is a stream of events.
    """

    send: Send
    has_begun: bool = False
    is_stream: bool = False

    @abstractmethod
    async def run(self) -> None:
        """Send the request until it is answered.

        Raises:
            ApiError: It cannot be answered.
        """

    async def fail(self, error: ApiError) -> None:
        """End a stream that has begun with an error event.

        Another answer is left unfinished: the server then breaks the connection off, and the client learns of it.
        """
        if self.is_stream:
            await self.send({"type": "http.response.body", "body": error_events(error), "more_body": True})
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class Proxy(ABC):
    """Answer what is about all replicas, and pass everything else on to one, as an ASGI application.

    Args:
        own: What answers GET requests here, by their paths.
    """

    def __init__(self, lifecycle: Lifecycle, own: Mapping[str, Own]) -> None:
        self._lifecycle, self._own = lifecycle, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._own.get(scope["path"]) if scope["method"] == "GET" else None
        try:
            if answer is None:
                await self._pass_on(scope, receive, send)
            else:
                await (await answer(Headers(scope=scope)))(scope, receive, send)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)

    @abstractmethod
    def _passed(self, scope: Scope, body: bytes, send: Send) -> PassedRequest:
        """Return what passes a request on."""

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and end it if the client leaves or the server ends.

        Raises:
            ApiError: It cannot be answered, and nothing has been sent yet.
        """
        passed = self._passed(scope, await content_of(Request(scope, receive)), send)
        work = asyncio.ensure_future(passed.run())
        is_cut = False

        def cut() -> None:
            nonlocal is_cut
            is_cut = True
            work.cancel()

        self._lifecycle.started(cut)
        try:
            await unless_gone(receive, work)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if not is_cut or (this is not None and this.cancelling()):
                raise
            error = unavailable("the server is shutting down, and this request took too long; send it again later")
            if not passed.has_begun:
                raise error from None
            await passed.fail(error)
        except ApiError:
            raise
        except Exception as error:
            if passed.has_begun:
                raise
            _log.error("%s %s failed in the proxy", scope["method"], scope["path"], exc_info=error)
            raise ApiError(500, "the server failed on this request; its log says where") from error
        finally:
            self._lifecycle.ended(cut)


def with_checks(proxy: Proxy, settings: Settings, lifecycle: Lifecycle) -> ASGIApp:
    """Return the application that checks requests as a server without replicas does. It takes them once it is ready."""
    return with_origins(RequestChecks(proxy, settings, lifecycle), settings.cors_origins)
