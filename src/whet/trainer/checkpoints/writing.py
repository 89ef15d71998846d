"""Write a checkpoint beside its place, and rename it when every file is on the disk."""

import contextlib
import datetime
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from whet import __version__
from whet.errors import OutputError
from whet.files import names_in
from whet.parallel.pieces import Piece
from whet.parallel.ranks import Ranks
from whet.trainer.checkpoints.encoding import json_text
from whet.trainer.checkpoints.host_copy import HostCopy
from whet.trainer.checkpoints.locks import FileLock, Locked
from whet.trainer.checkpoints.manifest import (
    COMPLETE,
    MANIFEST,
    VALUES,
    VERSION,
    VERSION_OF_WHOLE_TENSORS,
    Manifest,
    SavedFile,
    marker_of,
    read_manifests,
    step_name,
)
from whet.trainer.checkpoints.optimizer_state import OPTIMIZER, joined_optimizers

_CHUNK_BYTES = 8 * 2**20  # that are hashed and then written, while they are in cache; neither holds Python's lock
_LEFT_OVER = re.compile(r"\.step-\d+(?:-\d+)?\.(partial|removed)-[0-9a-f]{8}(?P<is_lock>\.lock)?")


def write_checkpoint(
    directory: Path,
    step: int,
    copy: HostCopy,
    values: dict[str, Any],
    pieces: Mapping[str, Piece] = MappingProxyType({}),
    ranks: Ranks | None = None,
) -> Path:
    """Write a checkpoint together with the other processes of a training, and return its directory.

    Each process writes files of its own. The first one makes the directory, writes what belongs to all, and renames it.

    Args:
        values: What is written as JSON; of other processes, what they have beside the first one's.
        pieces: Where the tensors of which this process holds a part lie in the whole ones.

    Raises:
        OutputError: It cannot be written. What was written of it is removed.
        RanksError: It cannot be written by another process.
    """
    ranks = ranks or Ranks()
    with contextlib.ExitStack() as made:
        place = ranks.first_tells("the place of a checkpoint", lambda: _begun(made, directory, step))
        partial: Path = directory / place
        told = ranks.all_tell(
            "the files of a checkpoint", lambda: [*_own_files(directory, partial, step, copy, pieces), values]
        )
        name = ranks.first_tells("a checkpoint's end", lambda: _completed(directory, partial, step, told))
        written: Path = directory / name
        return written


def _begun(made: contextlib.ExitStack, directory: Path, step: int) -> str:
    with _told(directory, step):
        return made.enter_context(_partial(directory, step_name(step))).name


def _own_files(
    directory: Path, partial: Path, step: int, copy: HostCopy, pieces: Mapping[str, Piece]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Write the files of this process, and return what the manifest says of them, as JSON holds it."""
    with _told(directory, step):
        if not partial.is_dir():
            raise OutputError(
                f"{partial} was made by the first process and is not seen on {socket.gethostname()}; let out lie on a "
                "file system that all machines share"
            )
        files = [
            _write(partial / file.name, [memoryview(file.header), file.memory], file.part)
            for file in copy.files
            if file.views
        ]
        synchronise(partial)
    names = {file.name: [name.removeprefix(f"{file.part}.") for name in file.views] for file in copy.files}
    found = []
    for saved in files:
        own = {name: pieces[whole] for name in names[saved.name] if (whole := f"{saved.part}.{name}") in pieces}
        found.append(saved.model_copy(update={"pieces": own}).model_dump(mode="json"))
    return found, dict(copy.aliases)


def _completed(directory: Path, partial: Path, step: int, told: Sequence[Any]) -> str:
    """Write what belongs to all processes, rename the directory to its name, and return that.

    Args:
        told: What each process told: the manifest's entries of its files, its aliases, and its values.
    """
    with _told(directory, step):
        files = [SavedFile.model_validate(one) for entries, _, _ in told for one in entries]
        values = joined_values([values for _, _, values in told])
        files.append(_write(partial / VALUES, [memoryview(json_text(values))], None))
        manifest = Manifest(
            version=VERSION if any(file.pieces for file in files) else VERSION_OF_WHOLE_TENSORS,
            step=step,
            number=_next_number(directory),
            saved_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            made_with={"whet": __version__, "torch": torch.__version__},
            files=tuple(files),
            aliases={name: owner for _, aliases, _ in told for name, owner in aliases.items()},
        )
        text = manifest.model_dump_json(indent=1, exclude_defaults=False).encode()
        _write(partial / MANIFEST, [memoryview(text)], None)
        _write(partial / COMPLETE, [memoryview(marker_of(text).encode())], None)
        synchronise(partial)
        path = _free_place(directory, step)
        partial.rename(path)
        synchronise(directory)
        return path.name


def joined_values(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of all processes as those of one: the first one's, and what others have beside them.

    Each process may hold the optimiser's state of some parameters alone.
    """
    found: dict[str, Any] = {**told[0]}
    for values in told[1:]:
        for name, value in values.items():
            found[name] = joined_optimizers(found[name], value) if name == OPTIMIZER and name in found else value
    return found


@contextlib.contextmanager
def _told(directory: Path, step: int) -> Iterator[None]:
    """Say what to do where something cannot be written in the block."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the checkpoint of step {step} cannot be written to {directory}: {error.strerror or error}; free some "
            "space or name another directory (the checkpoints of before are untouched)"
        ) from error


def _next_number(directory: Path) -> int:
    """Return how many-th checkpoint of a directory the next one is."""
    numbers = (manifest.number for _, manifest in read_manifests(directory) if isinstance(manifest, Manifest))
    return 1 + max(numbers, default=0)


@contextlib.contextmanager
def _partial(directory: Path, name: str) -> Iterator[Path]:
    """Make a directory to write into, which is locked meanwhile and removed at the end unless it was renamed."""
    partial = directory / f".{name}.partial-{secrets.token_hex(4)}"
    lock = FileLock(_lock_of(partial))
    try:
        partial.mkdir()
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.release()


def _lock_of(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.lock")


def _write(file: Path, contents: Sequence[memoryview], part: str | None) -> SavedFile:
    """Write a file and wait until it is on the disk. Its digest is computed on the way."""
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for content in contents:
            for begin in range(0, len(content), _CHUNK_BYTES):
                chunk = content[begin : begin + _CHUNK_BYTES]
                digest.update(chunk)
                size += len(chunk)
                while chunk:
                    chunk = chunk[os.write(descriptor, chunk) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return SavedFile(name=file.name, part=part, size_bytes=size, sha256=digest.hexdigest())


def synchronise(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_place(directory: Path, step: int) -> Path:
    """Return the place of a step, or one with a number behind it where the step was saved before.

    A directory that was replaced would be missing for a moment.
    """
    path = directory / step_name(step)
    number = 2
    while os.path.lexists(path):
        path = directory / f"{step_name(step)}-{number}"
        number += 1
    return path


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint so that it is never seen in part.

    Raises:
        OSError: It cannot be renamed.
    """
    removed = path.with_name(f".{path.name}.removed-{secrets.token_hex(4)}")
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_left_overs(directory: Path) -> None:
    """Remove what killed processes left of their checkpoints. What a living process writes stays."""
    for name in names_in(directory):
        if not (match := _LEFT_OVER.fullmatch(name)):
            continue
        path = directory / name
        lock = path if match["is_lock"] else _lock_of(path)
        if match[1] == "removed":
            shutil.rmtree(path, ignore_errors=True)
            continue
        with contextlib.suppress(Locked, OSError):
            held = FileLock(lock)
            shutil.rmtree(lock.with_name(lock.name.removesuffix(".lock")), ignore_errors=True)
            held.release()
