"""Open a model whose weights lie in a file of a private directory: pack it if it is not there, or else map it.

A file appears whole: it is written under a hidden name and renamed. One process at a time packs a model. The system
takes its lock back when it ends, also if it is killed, and the next one packs again.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from whet.errors import reason
from whet.files import hidden_name
from whet.kernels.linear.places import PRIVATE, Place, outline
from whet.models.shared_weights.identity import Identity, names_of
from whet.models.shared_weights.mapping import join_pages, make_read_only, mapped
from whet.models.shared_weights.places import InFile, Measured

_log = logging.getLogger("whet.models")

Model = TypeVar("Model")
Build = Callable[[Mapping[str, Tensor], Place], Model]
"""Builds a model of weights in a place. If the place wants no values, the weights are outlines."""


def open_shared(
    directory: Path,
    weights: Mapping[str, Tensor],
    build: Build[Model],
    identify: Callable[[list[int]], Identity],
    is_unchanged: Callable[[], bool],
) -> Model:
    """Build a model whose weights this process shares with others that use the same directory.

    Where that is impossible, the weights are private, and a warning says why.

    Args:
        directory: A directory that only this user can use.
        weights: The model's tensors by name. They are read only if the file has to be packed.
        identify: Returns what the packed weights depend on, given the bytes of each.
        is_unchanged: Returns whether the model's files are still those that `identify` knows.
    """
    measured = Measured()
    outlines = outlines_of(weights)
    build(outlines, measured)
    num_bytes = measured.num_bytes
    try:
        _check_private(directory)
        identity = identify(measured.sizes)
        slot, digest = names_of(identity)
        path = directory / f"{slot}-{digest}.weights"
        place = _packed_place(path, identity, num_bytes)
        if place is None:
            with _alone(directory / f"{slot}.lock"):
                place = _packed_place(path, identity, num_bytes)  # another process may have packed meanwhile
                if place is None:
                    _remove_others(directory, slot)
                    return _pack(path, identity, num_bytes, partial(build, weights), is_unchanged)
        return build(outlines, place)
    except OSError as error:
        why = error.strerror or reason(error)
    # Not earlier: the error keeps what was packed so far.
    _log.warning(
        "the weights are not shared with other processes, and this one takes memory for its own: %s in %s",
        why,
        directory,
    )
    return build(weights, PRIVATE)


def outlines_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: outline(tensor.shape, tensor.dtype) for name, tensor in weights.items()}


def _check_private(directory: Path) -> None:
    found = directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError("it is no directory")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError("other users could change the weights (chmod 700 makes the directory private)")


def _packed_place(path: Path, identity: Identity, num_bytes: int) -> InFile | None:
    """Return the place of weights that are packed already; None where there is no such file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        file.seek(num_bytes)
        try:
            told: dict[str, Any] = json.loads(file.read())
        except ValueError:
            return None  # it is shorter
        if told.get("identity") != identity:
            return None
        memory = mapped(file.fileno(), num_bytes, writable=False)
    join_pages(memory)
    return InFile(memory, told["notes"], is_packed=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_others(directory: Path, slot: str) -> None:
    """Remove what was packed of the model before it changed, and what killed processes left unfinished.

    Processes that have mapped a file keep its memory until they end.
    """
    for path in [*directory.glob(f"{slot}-*.weights"), *directory.glob(f".{slot}-*")]:
        path.unlink(missing_ok=True)


def _pack(
    path: Path,
    identity: Identity,
    num_bytes: int,
    build: Callable[[Place], Model],
    is_unchanged: Callable[[], bool],
) -> Model:
    unfinished = hidden_name(path)
    try:
        with unfinished.open("x+b") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error here, and a signal later
            memory = mapped(file.fileno(), num_bytes, writable=True)
            place = InFile(memory, {}, is_packed=False)
            model = build(place)
            make_read_only(memory)
            if not is_unchanged():
                raise OSError("the model's files changed while they were read")
            file.seek(num_bytes)
            file.write(json.dumps({"identity": identity, "notes": place.notes}).encode())
            file.flush()
            os.fsync(file.fileno())
        join_pages(memory)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return model
