"""Make the private directory in which processes of one server share their weights (EngineOptions.shared_weights)."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from whet.errors import OutputError
from whet.files import private_directory

_IN_MEMORY = Path("/dev/shm")  # tmpfs: pages there can be large, and nothing is written to a disk
_PREFIX = "whet-weights-"


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
    with contextlib.ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            directory = stack.enter_context(private_directory(place, _PREFIX))
        except OSError as error:
            raise OutputError(
                f"cannot make a directory for shared weights in {place}: {error.strerror or error}; free some space, "
                "or name another place in WHET_CACHE"
            ) from error
        yield directory


def _in_cache() -> Path:
    from whet.measure.machine.cache import cache_dir  # with torch

    return cache_dir() / "weights"


def _has_room(place: Path, num_bytes: int) -> bool:
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK) and found.f_bavail * found.f_frsize >= num_bytes
