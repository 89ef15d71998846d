"""Lock a directory or a file for one process, until it releases the lock or ends, however it ends.

These are POSIX record locks. The kernel drops them with the process, kill -9 included, and a child does not inherit
them, so that a loader's worker which outlives its run holds nothing. They work between machines on NFS. Two locks in
one process are told apart by a table of what the process holds.
"""

import contextlib
import datetime
import fcntl
import json
import os
import shlex
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Self

import psutil

from whet.errors import OutputError
from whet.files import usable_directory
from whet.ui.figures import one_line

_RUN = "run.lock"
_MOST_BYTES = 4096
_MOST_CHARACTERS = 80  # of the other run's command, in a message
_TABLE = threading.Lock()
_HELD: dict[Path, tuple[int, str]] = {}  # path -> the process that locked it, which a fork does not, and its text


class Locked(Exception):
    """Report that another process holds a lock, or this one elsewhere, with what the holder wrote into the file."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class FileLock:
    """Hold the lock of a file, which is made for it and gets a text for others to read.

    Raises:
        Locked: Somebody else holds it.
        OSError: The file cannot be made or locked.
    """

    def __init__(self, path: Path, text: str = "") -> None:
        self._path = path.absolute().parent.resolve() / path.name
        self._pid = os.getpid()
        with _TABLE:
            # To open and close a file that this process has locked would release the lock.
            pid, held = _HELD.get(self._path, (0, ""))
            if pid == self._pid:
                raise Locked(held)
            self._file = _locked_file(self._path)
            _HELD[self._path] = (self._pid, text)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def release(self) -> None:
        """Remove the file and release its lock. A second call does nothing, nor does one in a forked process."""
        with _TABLE:
            if os.getpid() != self._pid or _HELD.get(self._path, (0, ""))[0] != self._pid:
                return
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            del _HELD[self._path]


def _locked_file(path: Path) -> int:
    """Open a file and lock it, and return its descriptor. The holder before may remove the file meanwhile."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
            os.close(file)
        except (BlockingIOError, PermissionError):
            text = os.pread(file, _MOST_BYTES, 0).decode(errors="replace")
            os.close(file)
            raise Locked(text) from None
        except BaseException:
            os.close(file)
            raise


class RunLock:
    """Keep a directory for one run. A second run in it is refused; a run that was killed is no obstacle.

    It is a context manager.

    Args:
        directory: The run's directory, which is made where there is none.

    Raises:
        OutputError: Another run uses it, or it cannot be written.
    """

    def __init__(self, directory: Path | str) -> None:
        directory = usable_directory(Path(directory))
        try:
            self._lock = FileLock(directory / _RUN, json.dumps(_this_process()))
        except Locked as error:
            raise OutputError(
                f"another run uses {directory}: {_told(error.text)}; wait until it ends, or choose another directory"
            ) from None
        except OSError as error:
            raise OutputError(
                f"{directory} cannot be locked for one run: {error.strerror or error}; choose a directory on another "
                "file system"
            ) from error

    def release(self) -> None:
        """Let other runs use the directory."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _this_process() -> dict[str, Any]:
    """Return what others read of a process that holds a lock."""
    started = datetime.datetime.fromtimestamp(psutil.Process().create_time()).astimezone()
    return {
        "pid": os.getpid(),
        "started": started.isoformat(sep=" ", timespec="seconds"),
        "host": socket.gethostname(),
        "command": shlex.join(sys.argv),
    }


def _told(text: str) -> str:
    """Return a holder's text as a part of a sentence."""
    try:
        found = json.loads(text)
        pid, started, host, command = (one_line(str(found[key])) for key in ("pid", "started", "host", "command"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its process has not written its number yet"
    if len(command) > _MOST_CHARACTERS:
        command = f"{command[:_MOST_CHARACTERS]}…"
    where = "" if host == socket.gethostname() else f" on {host}"
    return f"process {pid}{where}, started {started} ({command})"
