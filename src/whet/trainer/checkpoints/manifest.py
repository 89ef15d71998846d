"""Say what the files of a checkpoint are, and list the checkpoints of a directory."""

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whet.errors import CheckpointError, reason
from whet.files import names_in
from whet.parallel.pieces import Piece

VERSION, VERSION_OF_WHOLE_TENSORS = 2, 1  # of the layout: from 2 on, files may hold parts of tensors
MANIFEST, COMPLETE, VALUES, PINNED = "manifest.json", "complete", "state.json", "pinned"
_NAME = re.compile(r"step-(\d{8,})(?:-\d+)?")
_FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"  # no path: a checkpoint may come from outside
_MOST_MANIFEST_BYTES = 64 * 2**20


class Damage(CheckpointError):
    """Say in a few words what is wrong with a checkpoint's files."""


class SavedFile(BaseModel):
    """Describe one file of a checkpoint.

    Attributes:
        name: Its name, without a directory.
        part: The first word of the names of its tensors, which the file itself leaves out; None of the values.
        sha256: The digest of its content, in hexadecimal digits.
        pieces: Where the tensors of which it holds a part lie in the whole ones, by their names in the file.
    """

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=_FILE_NAME)
    part: str | None
    size_bytes: int
    sha256: str
    pieces: dict[str, Piece] = {}


class Manifest(BaseModel):
    """Describe a checkpoint.

    Attributes:
        step: The step after which it was saved.
        number: Checkpoints of a directory are counted in the order in which they were saved. A run that goes back to an
            earlier step saves lower steps after higher ones.
        saved_at: The time, in ISO 8601.
        made_with: The versions of whet and torch.
        files: The files, but for the manifest and the marker.
        aliases: Names of tensors that share their memory with another one, and that one's name.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["whet checkpoint"] = "whet checkpoint"
    version: int = VERSION
    step: int
    number: int
    saved_at: str
    made_with: dict[str, str]
    files: tuple[SavedFile, ...]
    aliases: dict[str, str] = {}


@dataclass(frozen=True)
class SavedStep:
    """Describe a checkpoint whose manifest and marker fit each other.

    Attributes:
        path: Its directory.
        step: The step after which it was saved.
        number: Its place in the order in which the directory's checkpoints were saved.
        saved_at: The time, in ISO 8601.
        num_bytes: The size of its files.
        is_pinned: Whether it is kept until it is unpinned.
    """

    path: Path
    step: int
    number: int
    saved_at: str
    num_bytes: int
    is_pinned: bool


def marker_of(manifest: bytes) -> str:
    """Return the content of the marker that belongs to a manifest's content."""
    return f"{hashlib.sha256(manifest).hexdigest()}\n"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_directories(directory: Path) -> list[Path]:
    """Return the paths in a directory that are named as checkpoints are, whole or not.

    Raises:
        OutputError: The directory cannot be read.
    """
    return [directory / name for name in sorted(names_in(directory)) if _NAME.fullmatch(name)]


def step_of(path: Path) -> int:
    """Return the step in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def read_manifest(path: Path) -> Manifest:
    """Return a checkpoint's manifest, compared with its marker.

    Raises:
        Damage: One of both is missing or damaged, or the checkpoint cannot be read.
        CheckpointError: It is of a newer format.
    """
    try:
        if not path.is_dir():
            raise Damage("it is not a directory")
    except OSError as error:
        raise Damage(unreadable(path, error)) from error
    content = {name: _content(path / name) for name in (COMPLETE, MANIFEST)}
    if content[COMPLETE] != marker_of(content[MANIFEST]).encode():
        raise Damage(f"{MANIFEST} is not the one that {COMPLETE} was written for")
    try:
        version = _Version.model_validate_json(content[MANIFEST]).version
        if version <= VERSION:
            return Manifest.model_validate_json(content[MANIFEST])
    except (ValidationError, RecursionError) as error:
        raise Damage(f"{MANIFEST} is no manifest: {reason(error)}") from error
    raise CheckpointError(
        f"{path} is a checkpoint of format {version}, and this whet reads formats up to {VERSION}; update whet, or "
        "move the checkpoint away to resume from an earlier one"
    )


class _Version(BaseModel):
    format: Literal["whet checkpoint"]
    version: int


def _content(file: Path) -> bytes:
    try:
        if not file.is_file():
            raise Damage(f"{file.name} is missing")
        if file.stat().st_size > _MOST_MANIFEST_BYTES:
            raise Damage(f"{file.name} is too large")
        return file.read_bytes()
    except OSError as error:
        raise Damage(unreadable(file, error)) from error


def unreadable(file: Path, error: OSError) -> str:
    """Return in a few words why a file cannot be read."""
    return f"{file.name} cannot be read: {error.strerror or error}"


def read_manifests(directory: Path) -> Iterator[tuple[Path, Manifest | CheckpointError]]:
    """Yield the checkpoints of a directory with their manifests, or with why there is none that can be used.

    Raises:
        OutputError: The directory cannot be read.
    """
    for path in step_directories(directory):
        try:
            yield path, read_manifest(path)
        except CheckpointError as error:
            yield path, error


def sized_steps(directory: Path) -> list[SavedStep]:
    """Return the checkpoints whose files are all there with the right sizes, the newest first. No content is read.

    Raises:
        OutputError: The directory cannot be read.
    """
    found = []
    for path, manifest in read_manifests(directory):
        if isinstance(manifest, Manifest):
            with contextlib.suppress(Damage):
                check_sizes(path, manifest)
                num_bytes = sum(file.size_bytes for file in manifest.files)
                is_pinned = (path / PINNED).exists()
                found.append(SavedStep(path, manifest.step, manifest.number, manifest.saved_at, num_bytes, is_pinned))
    return sorted(found, key=lambda one: one.number, reverse=True)


def check_sizes(path: Path, manifest: Manifest) -> None:
    """Raise Damage where a file is missing or has another size."""
    for saved in manifest.files:
        file = path / saved.name
        try:
            if not file.is_file():
                raise Damage(f"{saved.name} is missing")
            size = file.stat().st_size
        except OSError as error:
            raise Damage(unreadable(file, error)) from error
        if size != saved.size_bytes:
            raise Damage(f"{saved.name} has {size} bytes in place of {saved.size_bytes}")
