"""Files that appear whole or not at all."""

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from whet.errors import OutputError


def names_in(directory: Path) -> list[str]:
    """What lies in a directory that results are to go to; nothing where there is none yet. Raises OutputError."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        if os.path.lexists(directory):
            raise OutputError(f"{directory} is a file; choose another --out") from None
        return []  # a file stands in its path: writable_parent says so
    except OSError as error:
        raise OutputError(f"{directory} cannot be used: {error.strerror}; choose another --out") from error


def writable_parent(directory: Path) -> Path:
    """What there is of a directory's path, itself included, where it can be made or written to; else OutputError."""
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
    """Raise OutputError where `write_whole` could not write a file, before any work is done for it. None: no file."""
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


def usable_directory(directory: Path) -> Path:
    """Make a directory for results where there is none. Raises OutputError where it cannot be made or written to."""
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
    """Make and remove the file that `write_whole` makes first. Permissions alone do not tell, as for root in /proc."""
    partial = _partial(path)
    partial.touch()
    partial.unlink()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part: write, fsync, rename."""
    data = content.encode() if isinstance(content, str) else content
    partial = _partial(path)
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
        with contextlib.suppress(OSError):  # gone after the rename; or it could not be made
            partial.unlink()


def replace_directory(partial: Path, directory: Path) -> None:
    """Put a finished directory in its place in one rename; what stood there before is removed after.

    Both must lie on one file system. Raises OutputError, with the old directory as it was.
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


def size_bytes(path: Path) -> int:
    """Bytes on disk of a file, or of all files below a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
