"""Pack documents of tokens into rows of one length, or put documents of similar length into one batch.

A batch of documents padded to the longest one computes much for nothing. Packed, several documents share a row. Each
has its own positions and its own number, and no token is predicted from another document. Attention must stay within a
document: see packed_attention.py. Models of transformers see where positions begin again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from whet.errors import OptionError
from whet.techniques.mechanisms.packing.packed_attention import PADDING
from whet.techniques.mechanisms.packing.packed_models import arguments_of

IGNORED = -100  # torch's and transformers' label of a token that has no loss


@dataclass(frozen=True)
class TokenBatch:
    """Hold rows of tokens [R, T], int64 throughout.

    Attributes:
        ids: The tokens; the padding token where a row ends early.
        positions: The position of each token in its document, from 0. Padding counts from 0 again.
        documents: The number of each token's document in its row, from 0; -1 for padding.
        labels: Each token itself, as transformers' models take it: they predict labels[:, 1:]. -100 for the first token
            of a document, which nothing predicts, for padding, and for tokens that are not to be learnt.
        following: What the last token of each row must predict, where its document goes on behind the row; -100 where
            it does not. [R]. None: no row goes on.
    """

    ids: Tensor
    positions: Tensor
    documents: Tensor
    labels: Tensor
    following: Tensor | None = None

    @property
    def targets(self) -> Tensor:
        """Return what each token's output must predict, for loops that shift by themselves: [R, T], -100 for none."""
        last = torch.full_like(self.labels[:, :1], IGNORED) if self.following is None else self.following[:, None]
        return torch.cat((self.labels[:, 1:], last), dim=1)

    @property
    def num_valid(self) -> int:
        """Return how many tokens have a loss. Losses of several batches are summed, then divided by their total."""
        return int((self.targets != IGNORED).sum())

    def for_transformers(self, model: nn.Module) -> dict[str, Any]:
        """Return the arguments of a causal language model of transformers.

        Where documents share rows, the model is asked once whether it finds them by their positions or needs a mask.
        shift_labels are the targets, where rows go on: labels alone cannot say what follows a row.

        Raises:
            OptionError: The model cannot keep documents apart that share a row.
        """
        given = arguments_of(model, self.ids, self.positions, self.documents) | {"labels": self.labels}
        return given if self.following is None else given | {"shift_labels": self.targets}

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TokenBatch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "TokenBatch":
        """Return the batch in pinned memory. A DataLoader calls this."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "TokenBatch":
        following = None if self.following is None else change(self.following)
        ids, positions, documents, labels = map(change, (self.ids, self.positions, self.documents, self.labels))
        return TokenBatch(ids, positions, documents, labels, following)


def packed_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Divide documents, by their lengths in tokens, among rows: the longest first, each into the first that has room.

    Returns:
        The indices of the documents of each row. The same lengths always give the same rows.

    Raises:
        OptionError: A document is longer than a row.
    """
    found = first_fit_decreasing(np.asarray(lengths, np.int64), row_length)
    rows: list[list[int]] = [[] for _ in range(int(found.max(initial=-1)) + 1)]
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        rows[found[index]].append(index)
    return rows


def first_fit_decreasing(lengths: NDArray[np.int64], row_length: int) -> NDArray[np.int64]:
    """Return the row of each document where the longest go first, each into the first row that has room for it.

    Documents of one length are placed together: each row, from the first on, takes as many as fit into it. So the work
    grows with the number of different lengths times the number of rows that are not full.

    Raises:
        OptionError: A document is longer than a row.

    Source: Johnson, "Near-optimal bin packing algorithms", 1973.
    """
    found = np.zeros(len(lengths), np.int64)
    if not len(lengths):
        return found
    if lengths.max() > row_length:
        raise OptionError(
            f"a document of {lengths.max()} tokens does not fit into a row of {row_length}; split it before"
        )
    order = np.argsort(-lengths, kind="stable")
    distinct, begins = np.unique(-lengths[order], return_index=True)
    rows, room, num_rows = np.empty(0, np.int64), np.empty(0, np.int64), 0  # those that are not full
    for length, indices in zip((-distinct).tolist(), np.split(order, begins[1:]), strict=True):
        if not length:
            continue  # nothing to place
        fitting = np.minimum(room // length, len(indices))
        taken = np.clip(len(indices) - (np.cumsum(fitting) - fitting), 0, fitting)
        left, per_row = len(indices) - int(taken.sum()), row_length // length
        new_rows = num_rows + np.arange(-(-left // per_row))
        taken = np.append(taken, np.minimum(per_row, left - per_row * (new_rows - num_rows)))
        rows, num_rows = np.append(rows, new_rows), num_rows + len(new_rows)
        room = np.append(room, np.full(len(new_rows), row_length)) - taken * length
        found[indices] = np.repeat(rows, taken)
        rows, room = rows[room > 0], room[room > 0]
    return found


def token_batch(
    rows: Sequence[Sequence[ArrayLike]],
    row_length: int,
    padding_id: int = 0,
    *,
    trained: Sequence[Sequence[ArrayLike]] | None = None,
    following: Sequence[int] | None = None,
) -> TokenBatch:
    """Lay documents one after the other into rows.

    Args:
        rows: The documents of each row: lists, arrays or tensors of token ids.
        padding_id: The token where a row ends early.
        trained: Which tokens are to be learnt, laid out like rows. None: all are.
        following: What the last token of each row must predict, -100 for nothing. None: no document goes on.
    """
    padded = [[*map(len, row), row_length - sum(map(len, row))] for row in rows]  # type: ignore[arg-type]
    lengths = np.array([length for row in padded for length in row], np.int64)
    numbers = np.array([n for row in rows for n in (*range(len(row)), PADDING)], np.int64)
    documents = np.repeat(numbers, lengths)
    positions = np.arange(len(documents)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_token = documents != PADDING
    ids = np.full(len(documents), padding_id, np.int64)
    ids[is_token] = _joined(rows)
    labels = np.where(is_token & (positions > 0), ids, IGNORED)
    if trained is not None:
        labels[is_token] = np.where(_joined(trained) != 0, labels[is_token], IGNORED)
    shape = (len(rows), row_length)
    tensors = [torch.from_numpy(numbers.reshape(shape)) for numbers in (ids, positions, documents, labels)]
    after = None if following is None else torch.as_tensor(following, dtype=torch.int64)
    return TokenBatch(tensors[0], tensors[1], tensors[2], tensors[3], after)


def _joined(rows: Sequence[Sequence[ArrayLike]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(np.asarray(one, np.int64) for row in rows for one in row)])


@dataclass(eq=False, repr=False)
class _Documents:
    """Go through documents in windows, in an order that may be drawn anew for each pass."""

    documents: Sequence[Sequence[int] | Tensor]
    window: int = field(default=1024, kw_only=True)
    padding_id: int = field(default=0, kw_only=True)
    shuffle: bool = field(default=False, kw_only=True)
    generator: torch.Generator | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be 1 or more documents; got {self.window}")

    def _windows(self) -> Iterator[list[int]]:
        """Yield the indices of the documents that have tokens, some at a time."""
        count = len(self.documents)
        order = torch.randperm(count, generator=self.generator).tolist() if self.shuffle else list(range(count))
        kept = [index for index in order if len(self.documents[index])]
        for begin in range(0, len(kept), self.window):
            yield kept[begin : begin + self.window]


@dataclass(eq=False, repr=False)
class PackedBatches(_Documents):
    """Give batches of packed rows. Rows are packed among the documents of a window, by first-fit decreasing.

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

    row_length: int
    num_rows: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row_length < 1 or self.num_rows < 1:
            raise OptionError(f"row_length and num_rows must be 1 or more; got {self.row_length} and {self.num_rows}")

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


@dataclass(eq=False, repr=False)
class LengthBatches(_Documents):
    """Give batches of one document a row, sorted by length within a window, so that little is padded.

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

    max_tokens: int | None = field(default=None, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = [limit for limit in (self.max_tokens, self.batch_size) if limit is not None]
        if not limits or min(limits) < 1:
            raise OptionError("give max_tokens or batch_size, 1 or more")

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
