"""The last messages of a connection arrive before it is closed."""

import asyncio
import time

import pytest

from whet.streamer.http import viewers
from whet.streamer.http.viewers import ENDED, _say_goodbye, _send_all


class SlowSocket:
    """A connection whose messages take a while to leave, as with a page that reads slowly."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.sent: list[str | bytes | int] = []

    async def send_text(self, text: str) -> None:
        await asyncio.sleep(self.delay_s)
        self.sent.append(text)

    send_bytes = send_text

    async def close(self, code: int) -> None:
        self.sent.append(code)


def said_goodbye(delay_s: float, stalls_s: float = 0.0) -> list[str | bytes | int]:
    """Return what a socket has sent when it is closed with two messages unsent. The machine may stand still once."""

    async def run() -> list[str | bytes | int]:
        socket, unsent = SlowSocket(delay_s), asyncio.Queue()
        sender = asyncio.ensure_future(_send_all(socket, unsent))
        unsent.put_nowait(b"a picture")
        unsent.put_nowait("ended")
        asyncio.get_running_loop().call_later(0.01, time.sleep, stalls_s)
        await _say_goodbye(socket, unsent, sender, ENDED)
        return socket.sent

    return asyncio.run(run())


def test_the_last_message_is_sent_to_its_end() -> None:
    assert said_goodbye(0.05) == [b"a picture", "ended", ENDED]


def test_a_machine_that_stands_still_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_LAST_S", 0.5)
    assert said_goodbye(0.05, stalls_s=0.7) == [b"a picture", "ended", ENDED]


def test_a_page_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_LAST_S", 0.1)
    assert said_goodbye(1000.0) == [ENDED]
