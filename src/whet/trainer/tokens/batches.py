"""Make batches of tokens, each a function of its position alone, so that a training resumes with a number."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from whet.errors import OptionError, TargetError
from whet.parallel.share import WHOLE, Share
from whet.techniques.mechanisms.packing.packing import IGNORED, TokenBatch, token_batch
from whet.trainer.tokens.order import Order
from whet.trainer.tokens.row_plan import row_plan
from whet.trainer.tokens.store import TokenStore


class Rows(Protocol):
    """Give rows of tokens by their number."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> TokenBatch:
        """Return some rows as a batch."""


class Windows:
    """Divide all tokens into windows of one length, whatever the documents; a model sees from one into the next.

    A window has one token more than the model sees: the one that its last token must predict, which is the first of the
    next window. So every token but the first is predicted once. A rest at the end is left out.
    """

    def __init__(self, store: TokenStore, sequence_length: int) -> None:
        """Divide tokens, of which a model sees `sequence_length` at once.

        Raises:
            OptionError: The length is below 1.
            TargetError: There are too few tokens for one window.
        """
        _check_length(sequence_length)
        if store.num_tokens <= sequence_length:
            raise TargetError(
                f"{store.num_tokens} tokens are too few for one window of {sequence_length} and the token behind it; "
                "give more text, or a smaller sequence length"
            )
        self.store, self.sequence_length = store, sequence_length

    def __len__(self) -> int:
        return (self.store.num_tokens - 1) // self.sequence_length

    def row(self, index: int) -> NDArray[Any]:
        """Return the tokens of a window and the one behind it, [sequence_length + 1], as a view.

        Raises:
            IndexError: There is no such window.
        """
        begin = _checked(index, len(self)) * self.sequence_length
        return self.store.tokens[begin : begin + self.sequence_length + 1]

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> TokenBatch:
        """Return some windows as a batch of one document a row, whose rows go on.

        Raises:
            IndexError: There is no such window.
        """
        width = self.sequence_length
        numbers = np.array([self.row(int(index)) for index in indices], np.int64).reshape(-1, width + 1)
        labels = numbers.copy()
        labels[:, 0] = IGNORED
        if self.store.trained is not None:
            begins = (int(index) * width for index in indices)
            mask = np.array([self.store.trained[begin : begin + width + 1] for begin in begins])
            labels[mask.reshape(labels.shape) == 0] = IGNORED
        ids, wanted = torch.from_numpy(numbers[:, :-1].copy()), torch.from_numpy(labels)
        positions = torch.arange(width).repeat(len(ids), 1)
        following = wanted[:, -1].contiguous()
        return TokenBatch(ids, positions, torch.zeros_like(ids), wanted[:, :-1].contiguous(), following)


class PackedRows:
    """Pack documents into rows, several into each, by first-fit decreasing; a model sees none from another.

    See `row_plan` for how documents that are longer than a row are cut. Every token but the first of a document is
    predicted once, except that tokens which are not to be learnt are left out.

    Attributes:
        num_tokens: The tokens that lie in rows.
        padding_share: The share of all places in rows that no token takes.
    """

    def __init__(self, store: TokenStore, sequence_length: int, *, padding_id: int = 0) -> None:
        """Plan the rows, or read the plan that is kept beside the store.

        Args:
            sequence_length: The tokens of a row.
            padding_id: The token where a row ends early.

        Raises:
            OptionError: The length is below 1.
            TargetError: No document has a token to predict.
        """
        _check_length(sequence_length)
        self.store, self.sequence_length, self.padding_id = store, sequence_length, padding_id
        self._plan = row_plan(store, sequence_length)
        self.num_tokens = self._plan.num_tokens
        self.padding_share = 1 - self.num_tokens / (len(self) * sequence_length)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make this again: a pickled plan would hold all of its numbers."""
        return partial(PackedRows, padding_id=self.padding_id), (self.store, self.sequence_length)

    def __len__(self) -> int:
        return len(self._plan)

    def row(self, index: int) -> list[NDArray[Any]]:
        """Return the documents of a row, or their pieces, as views.

        Raises:
            IndexError: There is no such row.
        """
        return [self.store.tokens[begin:end] for begin, end in self._pieces(index)]

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> TokenBatch:
        """Return some rows as a batch.

        Raises:
            IndexError: There is no such row.
        """
        rows = [self._pieces(int(index)) for index in indices]
        mask = self.store.trained
        return token_batch(
            [[self.store.tokens[begin:end] for begin, end in row] for row in rows],
            self.sequence_length,
            self.padding_id,
            trained=None if mask is None else [[mask[begin:end] for begin, end in row] for row in rows],
            following=[self._following(int(index), row[-1][1]) for index, row in zip(indices, rows, strict=True)],
        )

    def _pieces(self, index: int) -> list[tuple[int, int]]:
        """Return where the pieces of a row begin and end among the tokens."""
        begin, end = self._plan.row_begins[_checked(index, len(self)) : index + 2].tolist()
        return list(zip(self._plan.begins[begin:end].tolist(), self._plan.ends[begin:end].tolist(), strict=True))

    def _following(self, index: int, end: int) -> int:
        """Return what the last token of a row must predict."""
        if not self._plan.goes_on[index] or (self.store.trained is not None and not self.store.trained[end]):
            return IGNORED
        return int(self.store.tokens[end])


class TokenBatches(Dataset[TokenBatch]):
    """Give batches of rows, epoch after epoch without end. A batch depends on its step alone.

    Rows come in an order of their own in each epoch. A batch may lie in two epochs, so that each has its full size.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, *, shuffle: bool = True, start: int = 0) -> None:
        """Put rows in order.

        Args:
            seed: What the order depends on, from 0 to 2^64 - 1.
            shuffle: Whether each epoch has an order of its own. Otherwise rows come in order.
            start: The step that going over the batches begins with.

        Raises:
            OptionError: A number is out of its range.
        """
        if batch_size < 1:
            raise OptionError(f"batch_size must be 1 or more; got {batch_size}")
        self.rows, self.batch_size, self.start = rows, batch_size, _checked_start(start)
        self.order = Order(len(rows), seed, shuffle=shuffle)

    def batch_at(self, step: int, share: Share = WHOLE) -> TokenBatch:
        """Return the batch of a step, from 0, or a process's share of it.

        Raises:
            OptionError: The step is negative.
        """
        return self.rows.batch(self.order.items(step * self.batch_size, self.batch_size)[share.of(self.batch_size)])

    def epoch_at(self, step: int) -> float:
        """Return how many times the rows were gone over when a step begins."""
        return step * self.batch_size / len(self.rows)

    def __getitem__(self, step: int) -> TokenBatch:
        return self.batch_at(step)

    def __iter__(self) -> Iterator[TokenBatch]:
        """Go over the batches from `start` on, without end."""
        return map(self.batch_at, _Steps(self.start))

    def as_loader(
        self, num_workers: int = 0, start: int | None = None, *, pin_memory: bool = False, prefetch_factor: int = 2
    ) -> DataLoader[TokenBatch]:
        """Return a DataLoader that gives the same batches in the same order, without end.

        It draws nothing from PyTorch's generator, so that a training is the same with any number of workers.

        Args:
            start: The first step; None for that of this object.

        Raises:
            OptionError: The step is negative.
        """
        return DataLoader(
            self,
            batch_size=None,
            sampler=_Steps(self.start if start is None else start),
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor if num_workers else None,
            generator=torch.Generator().manual_seed(0),
        )


class _Steps(Sampler[int]):
    def __init__(self, start: int) -> None:
        self.start = _checked_start(start)

    def __iter__(self) -> Iterator[int]:
        step = self.start
        while True:
            yield step
            step += 1


def split(store: TokenStore, held_out: float | int, *, whole_documents: bool = False) -> tuple[TokenStore, TokenStore]:
    """Divide a store into views of what is trained on and of what is held out, which is its end.

    Args:
        held_out: A share of the tokens, such as 0.1, or a number of documents, such as 100.
        whole_documents: Round a share to the nearest beginning of a document. Otherwise a document is cut.

    Raises:
        OptionError: held_out is neither a share between 0 and 1 nor a number of documents.
        TargetError: A part would be empty.
    """
    if isinstance(held_out, float) and 0 < held_out < 1:
        place = store.num_tokens - round(held_out * store.num_tokens)
        if whole_documents:
            after = min(int(np.searchsorted(store.starts, place)), store.num_documents)
            near = np.asarray(store.starts[max(0, after - 1) : after + 1])
            place = int(near[np.argmin(np.abs(near - place))])
    elif isinstance(held_out, int) and not isinstance(held_out, bool) and held_out > 0:
        place = int(store.starts[max(0, store.num_documents - held_out)])
    else:
        raise OptionError(f"what is held out is a share such as 0.1, or a number of documents; got {held_out!r}")
    if not 0 < place < store.num_tokens:
        raise TargetError(
            f"a split of {store.num_documents} documents with {store.num_tokens} tokens by {held_out} leaves one part "
            "empty; give more text, or another share"
        )
    return store.view(0, place), store.view(place, store.num_tokens)


def _check_length(sequence_length: int) -> None:
    if sequence_length < 1:
        raise OptionError(f"the sequence length must be 1 or more; got {sequence_length}")


def _checked(index: int, length: int) -> int:
    if not 0 <= index < length:
        raise IndexError(f"there are {length} rows, and no row {index}")
    return index


def _checked_start(start: int) -> int:
    if start < 0:
        raise OptionError(f"a step is 0 or more; got {start}")
    return start
