"""Write files so that they appear whole or not at all, make directories that do not stay, and read JSON objects."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import OutputError, TargetError, reason

_LOCK = ".lock"  # what a private directory's lock is called after it


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory that results are written to; none where the directory does not exist yet.

    Raises:
        OutputError: It is a file, or cannot be read.
    """
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if os.path.lexists(directory):
            raise OutputError(f"{directory} is a file; choose another --out") from None
        return []  # a part of its path is a file, which writable_parent reports
    except OSError as error:
        raise OutputError(f"{directory} cannot be used: {error.strerror}; choose another --out") from error


def writable_parent(directory: Path) -> Path:
    """Return the deepest existing directory on a directory's path, itself included.

    Raises:
        OutputError: The directory cannot be made or written to.
    """
    parent = next(p for p in [directory, *directory.parents] if os.access(p, os.F_OK))  # Path.exists may raise
    if not parent.is_dir():
        raise OutputError(f"{directory} cannot be made: {parent} is a file; choose another --out")
    try:
        _try_to_write(parent / ".whet")
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"{directory} cannot be written: {why} in {parent}; choose another --out") from error
    return parent


def check_file(path: Path | None) -> None:
    """Raise OutputError, before any work is done, where `write_whole` cannot write a file. None stands for no file."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise OutputError(
            f"{path} cannot be written: there is no directory {path.absolute().parent}; make it, or name another file"
        )
    if path.is_dir():
        raise OutputError(f"{path} is a directory; name a file")
    try:
        _try_to_write(path.absolute())
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}; name another file") from error


def check_new_directory(path: Path) -> None:
    """Raise OutputError where a directory that is to be made exists already."""
    if os.path.lexists(path):
        raise OutputError(f"{path.absolute()} exists already; choose another --out")


def usable_directory(directory: Path) -> Path:
    """Make a directory for results where there is none, and return it; raise OutputError where it cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the directory {directory}: {error.strerror or error}; name another") from error
    try:
        _try_to_write(directory.absolute() / "whet")
    except OSError as error:
        raise OutputError(
            f"cannot write into the directory {directory}: {error.strerror or error}; name another"
        ) from error
    return directory


def is_writable(directory: Path) -> bool:
    """Return whether a file can be made in a directory that is there."""
    try:
        _try_to_write(directory.absolute() / ".whet")
    except OSError:
        return False
    return True


def _try_to_write(path: Path) -> None:
    """Make and remove the file that `write_whole` makes first.

    Permissions alone do not show whether that works: root has them in /proc and cannot write there.
    """
    partial = hidden_name(path)
    partial.touch()
    partial.unlink()


def hidden_name(path: Path) -> Path:
    """Return the hidden name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part: write, fsync, rename.

    Raises:
        OutputError: The file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = hidden_name(path)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; free some space, or name another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # it is gone after the rename, or could not be made
            partial.unlink()


def replace_directory(partial: Path, directory: Path) -> None:
    """Put a finished directory in its place by renaming it. The directory that was there before is removed afterwards.

    Both must be on one file system.

    Raises:
        OutputError: That fails; the old directory is then as it was.
    """
    old = directory.with_name(f".{directory.name}.old-{secrets.token_hex(4)}")
    try:
        if directory.is_dir():
            directory.replace(old)
        try:
            partial.replace(directory)
        except OSError:
            if old.exists():
                old.replace(directory)
            raise
    except OSError as error:
        raise OutputError(
            f"cannot write {directory}: {error.strerror or error}; free some space, or name another place"
        ) from error
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def private_directory(place: Path, prefix: str) -> Iterator[Path]:
    """Make a directory that only this user can use, and remove it at the end of the block.

    If this process is killed before that, the next call with the same place and prefix removes it.

    Raises:
        OSError: It cannot be made.
    """
    _remove_abandoned(place, prefix)
    lock, directory = _new_private(place, prefix)
    try:
        yield directory
    finally:
        _remove_private(directory)
        os.close(lock)


def _new_private(place: Path, prefix: str) -> tuple[int, Path]:
    """Make a directory, and return it with the open lock that says that it is used.

    The lock comes first, so that a directory without a process is always one that was left behind.
    """
    while True:
        directory = place / f"{prefix}{os.geteuid()}-{secrets.token_hex(8)}"
        lock = os.open(_lock_of(directory), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if _is_taken(lock, directory):
                directory.mkdir(mode=0o700)
                return lock, directory
        except OSError:
            _remove_private(directory)
            os.close(lock)
            raise
        os.close(lock)  # another process took it for one that was left behind


def _remove_abandoned(place: Path, prefix: str) -> None:
    """Remove this user's directories whose processes have ended without removing them."""
    for path in place.glob(f"{prefix}{os.geteuid()}-*{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            directory = path.with_name(path.name.removesuffix(_LOCK))
            if _is_taken(lock, directory):
                _remove_private(directory)
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


def _remove_private(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        _lock_of(directory).unlink()


def read_object(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Return the JSON object in a file that belongs to a target, such as a checkpoint's config.json.

    A missing file is refused if `required`. Otherwise, it counts as an empty object.

    Raises:
        TargetError: The file is damaged.
    """
    if not required and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TargetError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(value, dict):
        raise TargetError(f"{path} cannot be read: it holds no JSON object; copy the checkpoint's file again")
    return value


def size_bytes(path: Path) -> int:
    """Return the bytes on disk of a file, or of all files in a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
