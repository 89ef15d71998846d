"""Let one search at a time measure on this computer."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from whet.errors import OutputError
from whet.measure.machine.cache import cache_dir


class HostTurn:
    """Let those that share this computer measure one after the other: hold it while measuring.

    Only processes of this user, and of this container, take part: those with the same whet's cache.

    Args:
        report: Called with a sentence when waiting begins, and with "" when it ends.
        is_shared: Whether others may share it. If not, nothing is waited for.

    Attributes:
        waited_s: Seconds spent waiting so far.
    """

    def __init__(self, report: Callable[[str], None] = lambda text: None, *, is_shared: bool = True) -> None:
        self.waited_s = 0.0
        self._report = report
        self._is_shared = is_shared

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn for the block.

        Raises:
            OutputError: It cannot be taken, as whet's cache cannot be written.
        """
        if not self._is_shared:
            yield
            return
        path = cache_dir() / f"turn-{socket.gethostname()}-{os.geteuid()}.lock"  # several computers may have one cache
        with contextlib.ExitStack() as held:  # closing the file gives the turn to the next, as the process's end does
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock(held.enter_context(open(path, "a", opener=_private)))
            except OSError as error:
                raise OutputError(
                    f"searches on this machine take turns by {path}, which cannot be locked "
                    f"({error.strerror or error}); name another place in WHET_CACHE"
                ) from error
            yield

    @contextlib.contextmanager
    def standing_by(self) -> Iterator[None]:
        """Count the seconds of the block as waiting."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited_s += time.monotonic() - began

    def _lock(self, file: TextIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait_for(file)

    def _wait_for(self, file: TextIO) -> None:
        self._report("Waiting for another search that measures on this machine.")
        try:
            with self.standing_by():
                fcntl.flock(file, fcntl.LOCK_EX)
        finally:
            self._report("")


def _private(name: str, flags: int) -> int:
    """Open a file that no other user can open, and so lock."""
    return os.open(name, flags, 0o600)
