"""Start `whet serve DIR` for a benchmark, or find the process of a server by its address."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil

from whet.errors import TargetError
from whet.measure.child import ending_with_parent
from whet.server.load_test.client import is_up
from whet.ui.network import LOOPBACK, bind, http_url, is_loopback

_START_S = 600.0  # time to compile kernels, and to read and quantise weights
_STOP_S = 20.0
_ASK_AGAIN_S = 0.1
_TAIL_BYTES = 4000
_NICENESS = 5

WHET_SERVE = (sys.executable, "-P", "-m", "whet", "serve")


@contextlib.contextmanager
def started_server(
    directory: Path,
    options: Sequence[str] = (),
    *,
    api_key: str | None = None,
    command: Sequence[str] = WHET_SERVE,
) -> Iterator[str]:
    """Start `whet serve` for a model directory, yield its address once it takes requests, and end it afterwards.

    Raises:
        TargetError: The server does not start. The error holds the last line of its output.
    """
    if not (directory / "config.json").is_file():
        what = "holds no config.json" if directory.is_dir() else "is no directory"
        raise TargetError(f"{directory} {what}: give a model's directory, or a server's address as http://HOST:PORT")
    with bind(LOOPBACK, 0) as bound:
        port = bound.getsockname()[1]  # a free one
    words = [*command, str(directory), "--host", LOOPBACK, "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # The key is not passed as an argument: all users of the machine can read those.
            env=os.environ | ({} if api_key is None else {"WHET_API_KEY": api_key}),
            start_new_session=True,  # so that Ctrl-C reaches only the benchmark, which then ends the server
            preexec_fn=_before_start(),
        )
        try:
            url = http_url(LOOPBACK, port)
            _wait_until_up(process, url, log)
            yield url
        finally:
            _end(process)


def server_on_this_machine(url: str) -> list[int]:
    """Return the ids of the processes that listen at an address; none if it is on another machine.

    Such a server's own work is a part of the measurement, and no disturbance.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not _is_here(parts.hostname or ""):
        return []
    with contextlib.suppress(psutil.Error, OSError):  # other users' sockets may be hidden
        connections = psutil.net_connections("tcp")
        found = {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port}
        return sorted(pid for pid in found if pid)
    return []


def _wait_until_up(process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while not is_up(url):
        if process.poll() is not None:
            raise TargetError(
                f"whet serve did not start: {_last_line(log)}; run `whet serve` by itself to see all that it says"
            )
        if time.monotonic() > deadline:
            raise TargetError(
                f"whet serve was not ready after {_START_S:.0f} s; its last line: {_last_line(log)}; start it by "
                "itself, and give its address"
            )
        time.sleep(_ASK_AGAIN_S)


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = [line.strip() for line in log.read().decode(errors="replace").split("\n") if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to drain and exit. If it does not, kill it."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _before_start() -> Callable[[], None]:
    """Return a function that the server's process runs first.

    It lowers the server's priority, so that the load generator sends on time, as if it ran on another machine. On
    Linux, it also has the kernel end the server when the benchmark is killed.
    """
    end_with_parent = ending_with_parent(signal.SIGTERM)

    def begin() -> None:
        os.nice(_NICENESS)
        end_with_parent()

    return begin


def _is_here(host: str) -> bool:
    """Return whether a host name or address belongs to this machine."""
    with contextlib.suppress(OSError, ValueError):  # a name that cannot be encoded is a ValueError
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
        own = {address.address for found in psutil.net_if_addrs().values() for address in found}
        return any(is_loopback(str(a)) or a in own for a in addresses)
    return False
