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
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{directory} cannot be written: no permission in {parent}; choose another --out")
    return parent


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part: write, fsync, rename."""
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
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
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
    shutil.rmtree(old, ignore_errors=True)


def size_bytes(path: Path) -> int:
    """Bytes on disk of a file, or of all files below a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
