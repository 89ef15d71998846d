"""Run a process that has imported what its children need, and fork a child from it for each call.

A fork starts at once, where a fresh process first imports torch for seconds. Forks share their parent's pages, so that
only what they take themselves can be measured of their memory. They also share its layout of addresses and the secret
of its hashes, which should differ between measurements: `renew` makes another server.
The server only imports, so that there are no threads of torch for a fork to lose.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from whet.measure import load
from whet.measure.child import ending_with_parent, main
from whet.measure.fast_import import import_large
from whet.measure.isolate import LOG

_MESSAGE_BYTES = 2**16
_START_S = 120.0  # for the imports, from the slowest of disks
_LOST = -9  # what a child whose server is gone is said to have ended with: the kernel ends it by SIGKILL


class ForkServer:
    """Start the server. Use it as a context manager, or close it. One child runs at a time.

    `environment` is added to this process's current variables, for the server and its children.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self._preload, self._environment = preload, environment
        self._open()

    def _open(self) -> None:
        """Start a process that imports, then waits."""
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *self._preload],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **load.environment(), **self._environment},
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and with it a child that still runs. A second call does nothing."""
        self._wire.close()
        self._process.kill()
        self._process.wait()

    def renew(self) -> None:
        """Let another process take the server's place. Where none can be made, children start by themselves."""
        self.close()
        with contextlib.suppress(OSError):
            self._open()

    def start(
        self, function: str, directory: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> "ForkedChild | None":
        """Start a child that calls whet.measure.child.main(function, directory), with more variables if there are any.

        Returns None where the server has ended or does not answer. A server that does not answer is ended.
        """
        with contextlib.suppress(OSError):
            self._wire.send(json.dumps([function, str(directory), dict(environment)]).encode())
            if not select.select([self._wire], [], [], _START_S)[0]:
                self.close()
                return None
            if pid := self._wire.recv(_MESSAGE_BYTES):
                return ForkedChild(int(pid), self._wire)
        return None


class ForkedChild:
    """Offer the part of subprocess.Popen that `isolate` needs, for a process that is the server's child."""

    def __init__(self, pid: int, wire: socket.socket) -> None:
        self.pid = pid
        self._returncode: int | None = None
        self._wire = wire

    def wait(self, timeout: float | None = None) -> int:
        """Wait as subprocess.Popen does: subprocess.TimeoutExpired is raised after `timeout` seconds."""
        if self._returncode is None:
            if not select.select([self._wire], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._returncode = int(self._wire.recv(_MESSAGE_BYTES) or _LOST)
        return self._returncode


def serve(wire: socket.socket, preload: Sequence[str]) -> None:
    """Fork for each request, one after the other, until the other end closes."""
    ending_with_parent(signal.SIGKILL)()
    for name in preload:
        import_large(name)
    while request := wire.recv(_MESSAGE_BYTES):
        function, directory, variables = json.loads(request)
        pid = os.fork()
        if pid == 0:
            wire.close()
            os.environ.update(variables)
            _become(function, Path(directory))
        wire.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        wire.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(function: str, directory: Path) -> None:
    """Give the fork a session and a log of its own, then make the call. Never return."""
    try:
        os.setsid()
        with (directory / LOG).open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        main(function, str(directory))
    except BaseException:  # noqa: BLE001 - nothing may unwind into the server's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
