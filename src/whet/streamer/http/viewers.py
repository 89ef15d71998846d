"""Let one viewer at a time use the model, over a websocket."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from whet.errors import MissingExtra, RequestError, reason
from whet.streamer.http.messages import Start, parse_text
from whet.streamer.http.session import Send, Served, Session
from whet.streamer.http.settings import PageSettings
from whet.streamer.report import StreamReport

try:
    from fastapi import WebSocket, WebSocketDisconnect
except ImportError as error:
    raise MissingExtra("fastapi", "stream", "the page of whet stream") from error

_log = logging.getLogger("whet.streamer")

_START_S = 10.0  # a connection that does not say what it wants is closed
_HANDOVER_S = 5.0  # how long a new viewer waits for one that is leaving
_FIGURES_S = 0.5
_MOST_UNSENT = 256  # messages; a page that reads none is disconnected
_LAST_S = 1.0  # after which the last messages are given up if none of them goes out
_LAST_LOOKS = 10  # in that time: a machine that stands still for a second counts as one look

ENDED, GOING, MISUNDERSTOOD, NO_KEY, BUSY = 1000, 1012, 4400, 4401, 4409
"""The codes with which connections are closed."""


class Viewers:
    """Hold the model, and the viewer that uses it. Use it on the event loop.

    Args:
        model_thread: The one thread in which the model is called.
    """

    def __init__(
        self,
        served: Served,
        settings: PageSettings,
        model_thread: ThreadPoolExecutor,
        on_report: Callable[[StreamReport], None],
    ) -> None:
        self._served, self._settings, self._model_thread = served, settings, model_thread
        self._on_report = on_report
        self._held = asyncio.Lock()
        self._session: Session | None = None
        self._is_leaving = False
        self._is_ending = False

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection to its end. A stranger is refused with 403 before anything is started."""
        host, origin = socket.headers.get("host", ""), socket.headers.get("origin")
        if not (self._settings.allows_host(host) and self._settings.allows_origin(host, origin)):
            await socket.close()
            return
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            start = await self._start_of(socket)
            if start is None:
                return
            if not self._settings.is_key(start.key):
                await _refuse(socket, NO_KEY, "this server asks for an API key, and this is none of its keys")
                return
            if not await self._takes_over():
                await _refuse(socket, BUSY, "somebody else is watching; one viewer at a time can use the model")
                return
            try:
                await self._watch(socket, start)
            finally:
                self._session, self._is_leaving = None, False
                self._held.release()

    async def end(self) -> None:
        """End the stream that runs, because the server ends, and hand in its report."""
        self._is_ending = True
        if self._session is not None:
            await asyncio.to_thread(self._session.close)
        async with self._held:  # the viewer's connection is closed
            pass

    async def _start_of(self, socket: WebSocket) -> Start | None:
        """Return the connection's first message; None where it is another one, or none."""
        try:
            message = parse_text(await asyncio.wait_for(socket.receive_text(), _START_S))
        except (RequestError, KeyError, TimeoutError) as error:
            await _refuse(socket, MISUNDERSTOOD, str(error) if isinstance(error, RequestError) else _SAY_START)
            return None
        if not isinstance(message, Start):
            await _refuse(socket, MISUNDERSTOOD, _SAY_START)
            return None
        return message

    async def _takes_over(self) -> bool:
        """Take the model for a new viewer. It waits for one that is leaving, and for nobody else."""
        if self._is_ending or (self._held.locked() and not self._is_leaving):
            return False
        try:
            await asyncio.wait_for(self._held.acquire(), _HANDOVER_S)
        except TimeoutError:
            return False
        return True

    async def _watch(self, socket: WebSocket, start: Start) -> None:
        """Run a stream until the page goes away, the stream ends, or the server does."""
        loop = asyncio.get_running_loop()
        unsent: asyncio.Queue[str | bytes] = asyncio.Queue()

        def send(message: str | bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(unsent.put_nowait, message)

        self._session = session = Session(self._served, start.source, send)
        running = loop.run_in_executor(self._model_thread, session.run)
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(one)
            for one in (_send_all(socket, unsent), _receive_all(socket, session, send), _send_figures(session, send))
        ]
        try:
            await asyncio.wait([*tasks, running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_leaving = True
            await asyncio.to_thread(session.close)
            self._hand_in(await _result_of(running, send))
            for task in tasks[1:]:
                task.cancel()
        await _say_goodbye(socket, unsent, tasks[0], GOING if self._is_ending else ENDED)
        for fault in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(fault, Exception) and not isinstance(fault, WebSocketDisconnect):
                _log.error("the connection to a page failed", exc_info=fault)

    def _hand_in(self, report: StreamReport | None) -> None:
        if report is not None and report.counts.get("arrived"):
            self._on_report(replace(report, interrupted=self._is_ending))


_SAY_START = 'a connection begins with a text message, as {"type": "start", "source": "camera"}'


async def _result_of(running: asyncio.Future[StreamReport | None], send: Send) -> StreamReport | None:
    """Wait for a stream to end, and return its report; None where it failed in a way that nobody foresaw."""
    try:
        return await running
    except Exception as error:  # noqa: BLE001 - a mistake in one stream does not end the server
        _log.exception("a stream failed")
        send(json.dumps({"type": "ended", "why": f"the stream failed: {reason(error)}", "is_error": True}))
        return None


async def _send_all(socket: WebSocket, unsent: asyncio.Queue[str | bytes]) -> None:
    """Send what is to be sent until the page goes away, or reads too slowly."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the page has gone
        while unsent.qsize() < _MOST_UNSENT:
            message = await unsent.get()
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(message)
            unsent.task_done()


async def _receive_all(socket: WebSocket, session: Session, send: Send) -> None:
    """Hand the page's messages to the stream until the page goes away."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        try:
            if (frame := message.get("bytes")) is not None:
                session.take_frame(frame)
            else:
                session.take(parse_text(message["text"]))
        except RequestError as error:
            send(json.dumps({"type": "note", "text": str(error)}))


async def _send_figures(session: Session, send: Send) -> None:
    while True:
        await asyncio.sleep(_FIGURES_S)
        if (figures := session.figures()) is not None:
            send(figures)


async def _say_goodbye(
    socket: WebSocket, unsent: asyncio.Queue[str | bytes], sender: asyncio.Future[None], code: int
) -> None:
    """Close the connection once the last message has been sent, or none goes out any more."""
    all_sent = asyncio.ensure_future(unsent.join())
    left, num_idle = unsent.qsize(), 0
    while not (sender.done() or all_sent.done()) and num_idle < _LAST_LOOKS:
        await asyncio.wait([sender, all_sent], timeout=_LAST_S / _LAST_LOOKS, return_when=asyncio.FIRST_COMPLETED)
        num_idle = 0 if unsent.qsize() < left else num_idle + 1
        left = unsent.qsize()
    all_sent.cancel()
    sender.cancel()
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
        await socket.close(code)


async def _refuse(socket: WebSocket, code: int, why: str) -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await socket.send_text(json.dumps({"type": "refused", "code": code, "why": why}))
        await socket.close(code)
