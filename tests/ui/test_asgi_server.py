"""A server on a socket ends with a signal, whatever its event loop and its threads do."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, threading, time
from whet import asgi_server
from whet.ui.network import bind
asgi_server._STUCK_S = asgi_server._LAST_S = 0.3

class Server(asgi_server.AsgiServer):
    async def _serve(self, on_ready):
        on_ready()
        {work}
        while not self._server.should_exit:
            await asyncio.sleep(0.01)
    async def _finish(self):
        pass
    def _end_at_once(self):
        pass

class Uvicorn:
    should_exit = False

bound = bind("127.0.0.1", 0)
Server(Uvicorn(), bound, backlog=1, name="x").run(lambda: print("ready", flush=True))
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("pass", 0),
        ("time.sleep(100)", 1),
        ("asyncio.ensure_future(asyncio.to_thread(time.sleep, 100)); await asyncio.sleep(0)", 1),
    ],
)
def test_a_signal_ends_the_process(work: str, code: int) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
        said, errors = started.communicate(timeout=60)
    assert started.returncode == code, errors
    assert said == ("ended\n" if code == 0 else "")
    assert ("while some of its code still ran" in errors) == (code == 1)
