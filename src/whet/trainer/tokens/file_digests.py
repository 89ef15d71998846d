"""Hash the content of files, and remember it, so that a file is read once."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.errors import TargetError
from whet.files import usable_directory, write_whole
from whet.measure.machine.cache import cache_dir

_SETTLED_NS = 2_000_000_000  # a file system may write times in steps of two seconds


def tokens_cache(cache: Path | str | None) -> Path:
    """Return the directory of cached tokens: the given one, or `tokens` in whet's cache directory."""
    return cache_dir() / "tokens" if cache is None else Path(cache)


def file_digest(path: Path, cache: Path) -> str:
    """Return the SHA-256 of a file.

    It is remembered in the directory of cached tokens for as long as the file has its size, times and inode. The
    digest of a file that was written within the last two seconds is not remembered: another write may have the same
    time.

    Raises:
        TargetError: The file cannot be read, or changes meanwhile.
        OutputError: The cache cannot be written.
    """
    named = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    note = cache / "files" / f"{named}.json"
    try:
        with path.open("rb") as file:
            before = file_identity(path)
            known = _read(note)
            if known.get("identity") == before and isinstance(known.get("sha256"), str):
                return str(known["sha256"])
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise TargetError(cannot_be_read(path, error)) from error
    if file_identity(path) != before:
        raise TargetError(f"{path} changed while it was read; try again when nothing writes to it")
    if time.time_ns() - before["mtime_ns"] > _SETTLED_NS:
        facts = {"path": str(path.absolute()), "identity": before, "sha256": digest}
        write_whole(usable_directory(note.parent) / note.name, json.dumps(facts) + "\n")
    return digest


def weights_digest(directory: Path, cache: Path) -> str:
    """Return a digest of a Hugging Face directory's model: its config.json and its weights in safetensors.

    Args:
        cache: The directory of cached tokens, where the digests of files are remembered.

    Raises:
        TargetError: A file cannot be read.
        OutputError: The cache cannot be written.
    """
    files = [directory / "config.json", *sorted(directory.glob("*.safetensors"))]
    found = "".join(f"{file.name} {file_digest(file, cache)}\n" for file in files)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def file_identity(path: Path) -> dict[str, int]:
    """Return the size, times and inode of a file. Where they stay, so does its content.

    Raises:
        TargetError: There is no such file.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise TargetError(cannot_be_read(path, error)) from error
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def check_untouched(path: Path, before: Mapping[str, int]) -> None:
    """Raise TargetError where a mapped file's size or time is not as in `before`, which `file_identity` returned.

    One that was removed or replaced stays mapped.
    """
    with contextlib.suppress(OSError):
        now = path.stat()
        if now.st_ino == before["inode"] and (now.st_size, now.st_mtime_ns) != (before["size"], before["mtime_ns"]):
            raise TargetError(
                f"{path} was written to while it was trained on: it had {before['size']:,} bytes and has "
                f"{now.st_size:,}; put back what it held, and go on with --resume"
            )


def cannot_be_read(path: Path, error: OSError) -> str:
    """Return a message that says why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return f"there is no file {path}; check the path"
    if isinstance(error, IsADirectoryError):
        return f"{path} is a directory; name the files in it"
    return f"{path} cannot be read: {error.strerror or error}"


def _read(note: Path) -> dict[str, Any]:
    """Return what was remembered of a file; nothing where that cannot be read."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
