"""Read files of tokens that other programs wrote: `.npy`, and `.bin` with bare integers, as nanoGPT writes them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import OptionError, TargetError, reason
from whet.files import usable_directory, write_whole
from whet.trainer.tokens.file_digests import cannot_be_read, file_digest

_VERSION = 1
_BLOCK = 1 << 24  # tokens that are looked at together
_FACTS, _STARTS = "facts.json", "starts.bin"


@dataclass(frozen=True)
class RawTokens:
    """Hold a file of tokens and what was found out about it, as the fields of a TokenStore."""

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    digest: str
    largest_id: int
    place: Path


def read_raw(path: Path, dtype: np.dtype[Any] | None, end_id: int | None, cache: Path) -> RawTokens:
    """Map a file of tokens, and find its documents. The arguments are those of `store.open_raw`.

    Raises:
        TargetError: The file is missing, empty or damaged, or holds negative numbers.
        OptionError: dtype is missing, or is not that of the file.
        OutputError: The cache cannot be written.
    """
    tokens = _mapped(path, dtype)
    if not len(tokens):
        raise TargetError(f"{path} holds no tokens")
    named = f"{_VERSION} {file_digest(path, cache)} {tokens.dtype.str} {end_id}"
    digest = hashlib.sha256(named.encode()).hexdigest()
    place = cache / f"raw-{digest[:32]}"
    known = _known(place, len(tokens))
    if known is None:
        usable_directory(place)
        starts, largest_id = _looked_through(path, tokens, end_id)
        write_whole(place / _STARTS, starts.astype("<i8").tobytes())
        write_whole(place / _FACTS, json.dumps({"path": str(path), "largest_id": largest_id}) + "\n")
        known = starts, largest_id
    return RawTokens(tokens, known[0], digest, known[1], place)


def _mapped(path: Path, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    try:
        num_bytes = path.stat().st_size
        if path.is_dir():
            raise IsADirectoryError
        if path.suffix == ".npy":
            return _checked(path, np.load(path, mmap_mode="r", allow_pickle=False), dtype)
    except OSError as error:
        raise TargetError(cannot_be_read(path, error)) from error
    except (ValueError, EOFError) as error:
        raise TargetError(f"{path} cannot be read as a NumPy array of tokens: {reason(error)}") from error
    if path.suffix != ".bin":
        raise TargetError(f"{path} is no file of tokens that whet knows; it reads .npy and .bin")
    if dtype is None:
        raise OptionError(f"{path} does not say what its integers are; name their dtype, such as uint16")
    if num_bytes % dtype.itemsize:
        raise TargetError(
            f"{path} has {num_bytes:,} bytes, which is no whole number of {dtype.name} tokens: it was cut off, or has "
            "another dtype"
        )
    if not num_bytes:
        return np.empty(0, dtype)
    try:
        return np.memmap(path, dtype, "r")
    except OSError as error:
        raise TargetError(cannot_be_read(path, error)) from error


def _checked(path: Path, found: NDArray[Any], dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return the array of a `.npy` if it is a row of little-endian integers of the stated type."""
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TargetError(f"{path} holds {found.dtype} of shape {found.shape}; tokens are one row of integers")
    if found.dtype != found.dtype.newbyteorder("<"):
        raise TargetError(f"{path} is big endian; save it as {found.dtype.newbyteorder('<').str}")
    if dtype is not None and found.dtype != dtype:
        raise OptionError(f"{path} holds {found.dtype}, and dtype says {dtype}; leave dtype out")
    return found


def _known(place: Path, num_tokens: int) -> tuple[NDArray[np.int64], int] | None:
    """Return the boundaries and the largest token that were found before; None without them."""
    try:
        largest_id = json.loads((place / _FACTS).read_text(encoding="utf-8"))["largest_id"]
        starts = np.memmap(place / _STARTS, "<i8", "r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_whole = isinstance(largest_id, int) and len(starts) > 1 and starts[0] == 0 and starts[-1] == num_tokens
    return (starts, largest_id) if is_whole else None


def _looked_through(path: Path, tokens: NDArray[Any], end_id: int | None) -> tuple[NDArray[np.int64], int]:
    """Return where documents begin and end, and the largest token."""
    ends, largest_id = [np.zeros(1, np.int64)], -1
    for begin in range(0, len(tokens), _BLOCK):
        block = tokens[begin : begin + _BLOCK]
        largest_id = max(largest_id, int(block.max()))
        if block.dtype.kind == "i" and block.min() < 0:
            index = int(np.argmax(block < 0))
            raise TargetError(f"{path} holds {block[index]} as token {begin + index}; token ids are 0 or more")
        if end_id is not None:
            ends.append(np.flatnonzero(block == end_id) + (begin + 1))
    starts = np.concatenate(ends)
    return (starts if starts[-1] == len(tokens) else np.append(starts, len(tokens))), largest_id
