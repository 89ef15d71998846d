"""Keep tokens on disk: token ids one after the other, and where each document begins, both mapped into memory.

A store is a directory: `tokens.bin` and `starts.bin` hold the numbers, little endian; `trained.bin`, where there is
one, says of each token whether it is to be learnt; `header.json` says what the others must be. A store appears whole or
not at all, and never changes.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from whet.errors import OptionError, OutputError, TargetError
from whet.files import usable_directory, write_whole
from whet.trainer.tokens.file_digests import tokens_cache
from whet.trainer.tokens.raw import read_raw
from whet.trainer.tokens.store_format import (
    AGAIN,
    HEADER,
    STARTS,
    TOKENS,
    TRAINED,
    ContentDigest,
    Header,
    integers,
    read_header,
    token_dtype,
)

_BLOCK = 1 << 20  # bytes that are written together


@dataclass(frozen=True, eq=False)
class TokenStore:
    """Hold tokens that lie on disk. Nothing is read before it is used.

    Attributes:
        tokens: The token ids of all documents, one after the other. [T]
        starts: Where each document begins, and where the last one ends, int64. [documents + 1]
        trained: 1 for each token that is to be learnt, 0 for the others, uint8 [T]. None: all are.
        digest: A name of the content: equal content has an equal digest.
        vocab_size: The size of the vocabulary that the tokens were made with, or None where nobody said.
        largest_id: The largest token id; of a view, that of the whole store.
        place: A directory for what is derived from the tokens and kept.
        origin: A function and its arguments that make this store again in another process.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    trained: NDArray[np.uint8] | None
    digest: str
    vocab_size: int | None
    largest_id: int
    place: Path
    origin: tuple[Callable[..., "TokenStore"], tuple[Any, ...]]

    @classmethod
    def open(cls, directory: Path | str) -> "TokenStore":
        """Open what a StoreWriter wrote.

        Raises:
            TargetError: The directory is no store, or is damaged.
        """
        directory = Path(directory).absolute()
        header = read_header(directory)
        for name, num_bytes in header.file_bytes.items():
            path = directory / name
            found = path.stat().st_size if path.is_file() else None
            if found != num_bytes:
                told = "is missing" if found is None else f"has {found:,} bytes instead of {num_bytes:,}"
                raise TargetError(f"{directory} is damaged: {name} {told}; {AGAIN}")
        starts = _mapped(directory / STARTS, np.dtype("<i8"), header.num_documents + 1)
        if starts[0] != 0 or starts[-1] != header.num_tokens:
            raise TargetError(f"{directory} is damaged: {STARTS} does not fit {TOKENS}; {AGAIN}")
        return cls(
            tokens=_mapped(directory / TOKENS, np.dtype(header.dtype), header.num_tokens),
            starts=starts,
            trained=_mapped(directory / TRAINED, np.dtype("u1"), header.num_tokens) if header.has_trained else None,
            digest=header.digest,
            vocab_size=header.vocab_size,
            largest_id=header.largest_id,
            place=directory,
            origin=(TokenStore.open, (directory,)),
        )

    def __reduce__(self) -> tuple[Callable[..., "TokenStore"], tuple[Any, ...]]:
        """Return how to open the store again: a pickled map would hold all of its tokens."""
        return self.origin

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Return the number of documents, empty ones included."""
        return len(self.starts) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tokens.dtype

    def view(self, first: int, last: int) -> "TokenStore":
        """Return the tokens from `first` to before `last` as a store. Documents at its edges are cut.

        Raises:
            OptionError: The bounds do not lie within the tokens.
        """
        if not 0 <= first <= last <= self.num_tokens:
            raise OptionError(f"tokens {first} to {last} do not lie within the {self.num_tokens} of the store")
        begin, end = np.searchsorted(self.starts, first, "right"), np.searchsorted(self.starts, last, "left")
        named = hashlib.sha256(f"{self.digest} {first} {last}".encode()).hexdigest()
        return TokenStore(
            tokens=self.tokens[first:last],
            starts=np.concatenate(([first], self.starts[begin:end], [last])).astype(np.int64) - first,
            trained=None if self.trained is None else self.trained[first:last],
            digest=named,
            vocab_size=self.vocab_size,
            largest_id=self.largest_id,
            place=self.place,
            origin=(TokenStore.view, (self, first, last)),
        )

    def check_fits(self, vocab_size: int) -> None:
        """Raise TargetError where a token's id is none of the `vocab_size` that a model knows."""
        if self.largest_id >= vocab_size:
            raise TargetError(
                f"the tokens have ids up to {self.largest_id}, and the model knows {vocab_size}: {self.place} was made "
                "with another tokenizer; give the model's own, or a model with a larger vocabulary"
            )


class StoreWriter:
    """Write documents of tokens, one after the other, into a directory that appears when the last one is written.

    Use it in a `with` block. Whatever fails in the block, nothing is left behind. Memory does not grow with the tokens.
    """

    def __init__(self, directory: Path | str, dtype: DTypeLike, *, vocab_size: int | None = None) -> None:
        """Say what will be written.

        Args:
            directory: Where the store will be. An equal store that is there already is kept; anything else is refused.
            dtype: The integers on disk, such as "uint16".
            vocab_size: Ids from here on are refused. None: those that dtype cannot hold.

        Raises:
            OptionError: dtype is no integer type.
        """
        self.directory = Path(directory).absolute()
        self.dtype, self.vocab_size = token_dtype(dtype), vocab_size
        self.num_tokens = self.num_trained = self.num_documents = 0
        self._largest_id = -1
        self._last_end = 0
        self._partial = self.directory.with_name(f".{self.directory.name}.{secrets.token_hex(4)}")
        self._files: dict[str, BinaryIO] = {}
        self._digest = ContentDigest(self.dtype)

    def __enter__(self) -> "StoreWriter":
        """Make the hidden directory that is written to.

        Raises:
            OutputError: It cannot be made.
        """
        usable_directory(self.directory.parent)
        try:
            with self._writing():
                self._partial.mkdir()
                self._open(TOKENS)
                self._open(STARTS)
                self._write(STARTS, np.zeros(1, "<i8"))
        except BaseException:
            self._remove()
            raise
        return self

    def append(self, document: ArrayLike, trained: ArrayLike | None = None) -> None:
        """Write a document. See `extend`."""
        ids = integers(document)
        self.extend(ids, [len(ids)], trained)

    def extend(self, ids: ArrayLike, ends: Sequence[int] | NDArray[Any], trained: ArrayLike | None = None) -> None:
        """Write tokens of several documents.

        Args:
            ids: Token ids. [n]
            ends: Where documents end within these ids, in order; the rest belongs to a document that goes on. The
                last document ends with the block at the latest.
            trained: 1 or True for each token that is to be learnt. None: all are. [n]

        Raises:
            TargetError: An id is negative, or beyond the vocabulary or the dtype.
            OptionError: The ids are no row of integers, or ends or trained do not fit them.
            OutputError: The disk is full, or cannot be written.
        """
        row, bounds = integers(ids), integers(ends)
        self._check_ids(row)
        if len(bounds) and (bounds[0] < 0 or bounds[-1] > len(row) or bool((np.diff(bounds) < 0).any())):
            raise OptionError(f"ends must rise and lie within the {len(row)} ids")
        mask = None if trained is None else np.asarray(trained).astype(bool).astype(np.uint8)
        if mask is not None and mask.shape != row.shape:
            raise OptionError(f"trained must have one number for each of the {len(row)} ids; got shape {mask.shape}")
        with self._writing():
            self._write_mask(mask, len(row))
            self._write(TOKENS, row.astype(self.dtype))
            self._write(STARTS, (bounds + self.num_tokens).astype("<i8"))
        if len(bounds):
            self._last_end = self.num_tokens + int(bounds[-1])
        self.num_tokens += len(row)
        self.num_documents += len(bounds)
        if len(row):
            self._largest_id = max(self._largest_id, int(row.max()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put the finished directory in its place, or remove it after an error.

        Raises:
            OutputError: It cannot be written, or another directory is there.
        """
        try:
            if kind is None:
                self._finish()
        finally:
            self._remove()

    def _remove(self) -> None:
        """Close the files and remove the hidden directory, if it is still there."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # an error of before comes up again
                file.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _finish(self) -> None:
        if self._last_end < self.num_tokens:
            self.extend([], [0])
        with self._writing():
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        header = Header(
            dtype=self.dtype.name,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            largest_id=self._largest_id,
            vocab_size=self.vocab_size,
            has_trained=TRAINED in self._files,
            digest=self._digest.hexdigest(),
        )
        write_whole(self._partial / HEADER, header.model_dump_json(indent=1) + "\n")
        try:
            self._partial.rename(self.directory)
        except OSError as error:
            if not self.directory.exists():
                raise self._cannot_write(error) from error
            if not (self.directory / HEADER).is_file() or read_header(self.directory) != header:
                raise OutputError(f"{self.directory} holds something else already; name another directory") from error
            TokenStore.open(self.directory)

    def _check_ids(self, row: NDArray[Any]) -> None:
        if not len(row):
            return
        smallest, largest = int(row.min()), int(row.max())
        if smallest < 0:
            raise TargetError(f"token ids are 0 or more; got {smallest}")
        if self.vocab_size is not None and largest >= self.vocab_size:
            raise TargetError(
                f"token id {largest} is outside the vocabulary of {self.vocab_size}: the tokenizer and the model do "
                "not belong together"
            )
        if largest > np.iinfo(self.dtype).max:
            raise TargetError(f"token id {largest} does not fit into {self.dtype.name}; name a wider dtype")

    def _write_mask(self, mask: NDArray[np.uint8] | None, length: int) -> None:
        """Write which tokens are learnt. With the first mask, the tokens before it are noted as learnt."""
        if mask is not None and TRAINED not in self._files:
            self._open(TRAINED)
            self._digest.has_trained = True
            for begin in range(0, self.num_tokens, _BLOCK):
                self._write(TRAINED, np.ones(min(_BLOCK, self.num_tokens - begin), np.uint8))
        if TRAINED in self._files:
            self._write(TRAINED, np.ones(length, np.uint8) if mask is None else mask)
        self.num_trained += length if mask is None else int(mask.sum())

    def _open(self, name: str) -> None:
        self._files[name] = (self._partial / name).open("wb", buffering=_BLOCK)

    def _write(self, name: str, numbers: NDArray[Any]) -> None:
        content = numbers.data.cast("B") if numbers.size else b""
        self._files[name].write(content)
        getattr(self._digest, name.removesuffix(".bin")).update(content)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of the disk into one that says what to do."""
        try:
            yield
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write {self.directory}: {error.strerror or error}; free some space, or name another place"
        )


def open_raw(
    path: Path | str, *, dtype: DTypeLike | None = None, end_id: int | None = None, cache: Path | str | None = None
) -> TokenStore:
    """Open a file of tokens that another program wrote. It stays as it is.

    Where documents begin is found once, and kept in the cache.

    Args:
        path: A `.npy` with one row of integers, or a `.bin` of bare integers, little endian.
        dtype: The integers of a `.bin`, such as "uint16". A `.npy` says it itself.
        end_id: The token after which a new document begins; None for one document.
        cache: The directory of cached tokens; None is that of whet.

    Raises:
        TargetError: The file is missing, empty or damaged, or holds negative numbers.
        OptionError: dtype is missing, wrong, or not that of the file.
        OutputError: The cache cannot be written.
    """
    path, place = Path(path).absolute(), tokens_cache(cache)
    found = read_raw(path, None if dtype is None else token_dtype(dtype), end_id, place)
    origin = (partial(open_raw, dtype=found.tokens.dtype, end_id=end_id, cache=place), (path,))
    return TokenStore(**vars(found), trained=None, vocab_size=None, origin=origin)


def _mapped(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """Return a file's numbers; an empty file cannot be mapped."""
    return np.memmap(path, dtype, "r", shape=(length,)) if length else np.empty(0, dtype)
