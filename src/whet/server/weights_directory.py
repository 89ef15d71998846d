"""Make the private directory in which processes of one server share their weights (EngineOptions.shared_weights)."""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from whet.errors import OutputError

_IN_MEMORY = Path("/dev/shm")  # tmpfs: pages there can be large, and nothing is written to a disk
_PREFIX = "whet-weights-"
_LOCK = ".lock"


@contextlib.contextmanager
def weights_directory(num_bytes: int, in_memory: Path = _IN_MEMORY, on_disk: Path | None = None) -> Iterator[Path]:
    """Make a directory that only this user can use, for the time of the block: in memory, or else in whet's cache.

    It is removed at the end. If this process is killed before that, the next call removes it.

    Args:
        num_bytes: The bytes that it has to hold. They decide where it lies.
        on_disk: What is taken instead of whet's cache. Only to find the cache is PyTorch loaded.

    Raises:
        OutputError: It cannot be made in either place.
    """
    place = in_memory if _has_room(in_memory, num_bytes) else on_disk or _in_cache()
    lock: int | None = None
    try:
        try:
            place.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(place)
            lock, directory = _new(place)
        except OSError as error:
            raise OutputError(
                f"cannot make a directory for shared weights in {place}: {error.strerror or error}; free some space, "
                "or name another place in WHET_CACHE"
            ) from error
        try:
            yield directory
        finally:
            _remove(directory)
    finally:
        if lock is not None:
            os.close(lock)


def _in_cache() -> Path:
    from whet.measure.machine.cache import cache_dir  # with torch

    return cache_dir() / "weights"


def _has_room(place: Path, num_bytes: int) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK) and found.f_bavail * found.f_frsize >= num_bytes


def _new(place: Path) -> tuple[int, Path]:
    """Make a directory, and return it with the open lock that says that it is used.

    The lock comes first, so that a directory without a process is always one that was left behind.
    """
    while True:
        directory = place / f"{_PREFIX}{os.geteuid()}-{secrets.token_hex(8)}"
        lock = os.open(_lock_of(directory), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if _is_taken(lock, directory):
            directory.mkdir(mode=0o700)
            return lock, directory
        os.close(lock)  # another process took it for one that was left behind


def _remove_abandoned(place: Path) -> None:
    """Remove this user's directories whose processes have ended without removing them."""
    for path in place.glob(f"{_PREFIX}{os.geteuid()}-*{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            directory = path.with_name(path.name.removesuffix(_LOCK))
            if _is_taken(lock, directory):
                _remove(directory)
        finally:
            os.close(lock)


def _is_taken(lock: int, directory: Path) -> bool:
    """Lock a directory that no process uses, and return whether that worked and its lock is still in its place."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock).st_ino == _lock_of(directory).stat().st_ino
    except OSError:
        return False


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        _lock_of(directory).unlink()
