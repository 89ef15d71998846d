"""Define how tokens lie on disk: the files of a store, its header, and the digest of its content."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from whet.errors import OptionError, TargetError, reason

HEADER, TOKENS, STARTS, TRAINED = "header.json", "tokens.bin", "starts.bin", "trained.bin"
VERSION = 1
AGAIN = "remove the directory and make the tokens anew"


class Header(BaseModel):
    """Hold what `header.json` says of a store.

    Attributes:
        dtype: The type of a token, as NumPy names it.
        num_documents: The documents, empty ones included.
        largest_id: The largest token id; -1 without tokens.
        vocab_size: The size of the vocabulary that the tokens were made with, or None.
        has_trained: Whether there is a `trained.bin`.
        digest: The SHA-256 of all content.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["whet tokens"] = "whet tokens"
    version: int = VERSION
    dtype: str
    num_tokens: NonNegativeInt
    num_documents: NonNegativeInt
    largest_id: int
    vocab_size: int | None
    has_trained: bool
    digest: str

    @property
    def file_bytes(self) -> dict[str, int]:
        """Return the bytes that each file must have."""
        sizes = {TOKENS: self.num_tokens * np.dtype(self.dtype).itemsize, STARTS: (self.num_documents + 1) * 8}
        return sizes | ({TRAINED: self.num_tokens} if self.has_trained else {})


class ContentDigest:
    """Hash the content of a store as it is written."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype, self.has_trained = dtype, False
        self.tokens, self.starts, self.trained = (hashlib.sha256() for _ in range(3))

    def hexdigest(self) -> str:
        parts = [self.dtype.str, self.tokens.hexdigest(), self.starts.hexdigest()]
        parts += [self.trained.hexdigest()] if self.has_trained else []
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def read_header(directory: Path) -> Header:
    """Return the header of a store.

    Raises:
        TargetError: There is none, it is damaged, or it is of another version.
    """
    path = directory / HEADER
    if not path.is_file():
        raise TargetError(
            f"{directory} holds no tokens: it has no {HEADER}; name a directory that whet wrote tokens to"
        )
    try:
        header = Header.model_validate_json(path.read_bytes())
        token_dtype(header.dtype)
    except (OSError, ValidationError, OptionError) as error:
        raise TargetError(f"{path} is damaged: {reason(error)}; {AGAIN}") from error
    if header.version != VERSION:
        raise TargetError(f"{directory} has version {header.version} of the format, and this whet reads {VERSION}")
    return header


def token_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the little-endian integer type of tokens that a name stands for.

    Raises:
        OptionError: It is no integer type.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "iu":
        raise OptionError(f"tokens are integers, such as uint16 or int32; got the dtype {dtype!r}")
    return found.newbyteorder("<")


def integers(values: ArrayLike) -> NDArray[Any]:
    """Return a row of integers as an array.

    Raises:
        OptionError: It is none.
    """
    found = np.asarray(values)
    if found.dtype == object or found.dtype.kind == "f":  # NumPy reads integers beyond int64 so
        is_whole = not isinstance(values, np.ndarray) and all(isinstance(one, int) for one in values)  # type: ignore[union-attr]
        with contextlib.suppress(OverflowError):
            found = np.array(values, dtype=np.uint64) if is_whole else found
        found = found if found.size else found.astype(np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise OptionError(f"token ids are one row of integers; got {found.dtype} of shape {found.shape}")
    return found
