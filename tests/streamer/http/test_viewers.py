"""The last messages of a connection arrive before it is closed."""

import asyncio

from whet.streamer.http.viewers import ENDED, _say_goodbye, _send_all


class SlowSocket:
    """A connection whose messages take a while to leave, as with a page that reads slowly."""

    def __init__(self) -> None:
        self.sent: list[str | bytes | int] = []

    async def send_text(self, text: str) -> None:
        await asyncio.sleep(0.05)
        self.sent.append(text)

    send_bytes = send_text

    async def close(self, code: int) -> None:
        self.sent.append(code)


def test_the_last_message_is_sent_to_its_end() -> None:
    async def run() -> list[str | bytes | int]:
        socket, unsent = SlowSocket(), asyncio.Queue()
        sender = asyncio.ensure_future(_send_all(socket, unsent))
        unsent.put_nowait(b"a picture")
        unsent.put_nowait("ended")
        await _say_goodbye(socket, unsent, sender, ENDED)
        return socket.sent

    assert asyncio.run(run()) == [b"a picture", "ended", ENDED]
