"""Write files so that they appear whole or not at all."""

import contextlib
import os
import secrets
from pathlib import Path

from whet_audit.errors import OutputError


def check_file(path: Path | None) -> None:
    """Check, before any work is done for it, that `write_whole` can write a file. None stands for no file.

    Raises:
        OutputError: It cannot be written.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise OutputError(
            f"{path} cannot be written: there is no directory {path.absolute().parent}; make it, or name another file"
        )
    if path.is_dir():
        raise OutputError(f"{path} is a directory; name a file")
    partial = _hidden_name(path.absolute())
    try:  # permissions alone do not show it: root has them in /proc and cannot write there
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}; name another file") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part: write, fsync, rename.

    Raises:
        OutputError: The file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = _hidden_name(path)
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


def _hidden_name(path: Path) -> Path:
    """Return the hidden name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
