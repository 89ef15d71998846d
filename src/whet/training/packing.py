"""Pack documents of tokens into rows of one length, or put documents of similar length into one batch.

A batch of documents padded to the longest one computes much for nothing. Packed, several documents share a row. Each
has its own positions and its own number, and no token is predicted from another document. Attention must stay within a
document: see whet.training.packed_attention. Models of transformers see where positions begin again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.errors import OptionError

IGNORED = -100  # torch's and transformers' label of a token that has no loss
PADDING = -1  # the document number of padding


@dataclass(frozen=True)
class TokenBatch:
    """Hold rows of tokens [R, T], int64 throughout.

    Attributes:
        ids: The tokens; the padding token where a row ends early.
        positions: The position of each token in its document, from 0. Padding counts from 0 again.
        documents: The number of each token's document in its row, from 0; -1 for padding.
        labels: Each token itself, as transformers' models take it: they predict labels[:, 1:]. -100 for the first token
            of a document, which nothing predicts, and for padding.
    """

    ids: Tensor
    positions: Tensor
    documents: Tensor
    labels: Tensor

    @property
    def targets(self) -> Tensor:
        """Return what each token's output must predict, for loops that shift by themselves: [R, T], -100 for none."""
        return torch.cat((self.labels[:, 1:], torch.full_like(self.labels[:, :1], IGNORED)), dim=1)

    @property
    def num_valid(self) -> int:
        """Return how many tokens have a loss. Losses of several batches are summed, then divided by their total."""
        return int((self.labels != IGNORED).sum())

    def for_transformers(self) -> dict[str, Any]:
        """Return the arguments of a causal language model of transformers.

        use_cache is False: with a cache, which is their default, the models do not look for documents, and attend from
        one to the next.
        """
        return {"input_ids": self.ids, "position_ids": self.positions, "labels": self.labels, "use_cache": False}


def packed_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Divide documents among rows: the longest first, each into the first row that has room for it.

    Args:
        lengths: The tokens of each document.
        row_length: The tokens of a row.

    Returns:
        The indices of the documents of each row. The same lengths always give the same rows.

    Raises:
        OptionError: A document is longer than a row.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if length > row_length:
            raise OptionError(f"a document of {length} tokens does not fit into a row of {row_length}; split it before")
        place = next((i for i, free in enumerate(room) if free >= length), None)
        if place is None:
            rows.append([index])
            room.append(row_length - length)
        else:
            rows[place].append(index)
            room[place] -= length
    return rows


def token_batch(rows: Sequence[Sequence[Sequence[int] | Tensor]], row_length: int, padding_id: int = 0) -> TokenBatch:
    """Lay documents one after the other into rows.

    Args:
        rows: The documents of each row.
        row_length: The tokens of a row.
        padding_id: The token where a row ends early.
    """
    shape = (len(rows), row_length)
    ids, labels = torch.full(shape, padding_id), torch.full(shape, IGNORED)
    documents, positions = torch.full(shape, PADDING), torch.zeros(shape, dtype=torch.int64)
    for r, row in enumerate(rows):
        begin = 0
        for number, document in enumerate(row):
            end = begin + len(document)
            ids[r, begin:end] = torch.as_tensor(document)
            labels[r, begin + 1 : end] = ids[r, begin + 1 : end]
            documents[r, begin:end] = number
            positions[r, begin:end] = torch.arange(end - begin)
            begin = end
        positions[r, begin:] = torch.arange(row_length - begin)
    return TokenBatch(ids, positions, documents, labels)


class _Documents:
    """Go through documents in windows, in an order that may be drawn anew for each pass."""

    def __init__(
        self,
        documents: Sequence[Sequence[int] | Tensor],
        *,
        window: int,
        padding_id: int,
        shuffle: bool,
        generator: torch.Generator | None,
    ) -> None:
        if window < 1:
            raise OptionError(f"window must be 1 or more documents; got {window}")
        self.documents, self.window, self.padding_id = documents, window, padding_id
        self.shuffle, self.generator = shuffle, generator

    def _windows(self) -> Iterator[list[int]]:
        """Yield the indices of the documents that have tokens, some at a time."""
        count = len(self.documents)
        order = torch.randperm(count, generator=self.generator).tolist() if self.shuffle else list(range(count))
        kept = [index for index in order if len(self.documents[index])]
        for begin in range(0, len(kept), self.window):
            yield kept[begin : begin + self.window]


class PackedBatches(_Documents):
    """Give batches of packed rows. Rows are packed among the documents of a window, by first-fit decreasing."""

    def __init__(
        self,
        documents: Sequence[Sequence[int] | Tensor],
        row_length: int,
        num_rows: int,
        *,
        window: int = 1024,
        padding_id: int = 0,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        """Pack documents.

        Args:
            documents: The tokens of each document. Those without tokens are left out.
            row_length: The tokens of a row; no document may be longer.
            num_rows: The rows of a batch. The last batch of a pass may have fewer.
            window: Documents among which rows are packed. More of them leave less padding.
            padding_id: The token where a row ends early.
            shuffle: Whether each pass has an order of its own.
            generator: What the order is drawn from; None is PyTorch's own generator.

        Raises:
            OptionError: A size is below 1.
        """
        super().__init__(documents, window=window, padding_id=padding_id, shuffle=shuffle, generator=generator)
        if row_length < 1 or num_rows < 1:
            raise OptionError(f"row_length and num_rows must be 1 or more; got {row_length} and {num_rows}")
        self.row_length, self.num_rows = row_length, num_rows

    def __iter__(self) -> Iterator[TokenBatch]:
        """Return one pass.

        Raises:
            OptionError: A document is longer than a row.
        """
        waiting: list[list[Sequence[int] | Tensor]] = []
        for indices in self._windows():
            found = packed_rows([len(self.documents[index]) for index in indices], self.row_length)
            waiting += [[self.documents[indices[i]] for i in row] for row in found]
            while len(waiting) >= self.num_rows:
                yield token_batch(waiting[: self.num_rows], self.row_length, self.padding_id)
                del waiting[: self.num_rows]
        if waiting:
            yield token_batch(waiting, self.row_length, self.padding_id)


class LengthBatches(_Documents):
    """Give batches of one document a row, sorted by length within a window, so that little is padded."""

    def __init__(
        self,
        documents: Sequence[Sequence[int] | Tensor],
        *,
        max_tokens: int | None = None,
        batch_size: int | None = None,
        window: int = 1024,
        padding_id: int = 0,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        """Sort documents into batches.

        Args:
            documents: The tokens of each document. Those without tokens are left out.
            max_tokens: The most tokens of a batch, padding included: rows times the longest row.
            batch_size: The most rows of a batch.
            window: Documents that are sorted together.
            padding_id: The token behind short documents.
            shuffle: Whether each pass has an order of its own, of documents and of the batches of a window.
            generator: What the order is drawn from; None is PyTorch's own generator.

        Raises:
            OptionError: Neither max_tokens nor batch_size is given, or one is below 1.
        """
        super().__init__(documents, window=window, padding_id=padding_id, shuffle=shuffle, generator=generator)
        limits = [limit for limit in (max_tokens, batch_size) if limit is not None]
        if not limits or min(limits) < 1:
            raise OptionError("give max_tokens or batch_size, 1 or more")
        self.max_tokens, self.batch_size = max_tokens, batch_size

    def __iter__(self) -> Iterator[TokenBatch]:
        """Return one pass.

        Raises:
            OptionError: A document has more than max_tokens tokens.
        """
        for indices in self._windows():
            groups = self._groups(sorted(indices, key=lambda index: -len(self.documents[index])))
            count = len(groups)
            order = torch.randperm(count, generator=self.generator).tolist() if self.shuffle else range(count)
            for number in order:
                chosen = [self.documents[index] for index in groups[number]]
                yield token_batch([[one] for one in chosen], len(chosen[0]), self.padding_id)

    def _groups(self, indices: Sequence[int]) -> list[list[int]]:
        """Divide documents, the longest first, into batches within the limits."""
        groups: list[list[int]] = []
        most = 0  # rows of the present batch
        for index in indices:
            length = len(self.documents[index])
            if not groups or len(groups[-1]) >= most:
                most = self._most_rows(length)
                groups.append([])
            groups[-1].append(index)
        return groups

    def _most_rows(self, length: int) -> int:
        """Return how many rows of a length a batch may have."""
        if self.max_tokens is not None and length > self.max_tokens:
            raise OptionError(f"a document of {length} tokens is above max_tokens, {self.max_tokens}; split it before")
        by_tokens = [] if self.max_tokens is None else [self.max_tokens // length]
        return min([*by_tokens, *([] if self.batch_size is None else [self.batch_size])])
