"""Run samples from any thread in batches, of similar lengths where they differ: dynamic batching for any model."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from whet.core.artefact import Artefact
from whet.core.signature import Argument
from whet.errors import EngineClosed, InputsError, OptionError, QueueFull
from whet.server.batching.batch_queue import BatchQueue, QueuedSample
from whet.server.batching.counts import BatcherStats, Totals
from whet.server.batching.gathering import Answer, Request
from whet.server.batching.loop_mail import LoopMail
from whet.server.batching.padding import Cut, Padding, Sample, next_size, read_sample
from whet.server.batching.worker import Worker

_LOG = logging.getLogger("whet")


class DynamicBatcher:
    """Run a function over batches of single samples, in a thread of its own. Use it as a context manager.

    Args:
        function: A module in eval mode, a loaded artefact, or any function of tensors. The first dimension of its
            inputs and outputs is the batch. It may return tensors, or tuples or dicts of tensors. It runs in one
            thread, without gradients.
        max_batch: The most samples in a batch. By default, the largest of batch_sizes, or 32 without these.
        max_wait_ms: How long the first sample of a batch waits for others.
        max_waiting: How many samples may wait. Above, `submit` raises QueueFull.
        max_waiting_bytes: How many bytes of them may wait; None for any. One request may have more where none waits.
        pad_value: The value of padding: one number for all inputs, or one for each by place or name.
        sort_by_length: Put the longest samples first, within a batch and among batches that are formed together.
        buckets: The lengths to pad to. A longer sample is refused.
        batch_sizes: The batch sizes that the function takes. Smaller batches are filled up with copies of a sample.
        length_dim: The dimension of a sample (without the batch) in which samples may differ; None for none.
        cut: Whether outputs have this dimension too, and are cut to the sample's length. For tuples and dicts, the
            places or names of the outputs that have it. It is needed as soon as lengths differ.
        mask: The name of a keyword argument that tells the function which elements belong to a sample: bool [batch,
            length], of the first input that has a length. Without it, padding must not change the results.
        lengths: The name of a keyword argument that gives the function the lengths: int64 [batch].
        example: A sample. Samples with other names, types or sizes are refused. Without an example, they run in
            batches of their own. An artefact knows its inputs: it needs no example, and no batch_sizes if its batch
            size is fixed.
        retry_alone: If the function raises, run the samples of the batch one by one, so that a sample which it does
            not take fails by itself.

    Raises:
        OptionError: An option is out of range, or the module is in training mode.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        max_batch: int | None = None,
        max_wait_ms: float = 5.0,
        max_waiting: int = 1024,
        max_waiting_bytes: int | None = None,
        pad_value: float | Mapping[int | str, float] = 0,
        sort_by_length: bool = True,
        buckets: Sequence[int] | None = None,
        batch_sizes: Sequence[int] | None = None,
        length_dim: int | None = 0,
        cut: Cut | None = None,
        mask: str | None = None,
        lengths: str | None = None,
        example: Any = None,
        retry_alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._takes = function.signature.inputs if isinstance(function, Artefact) else None
        if self._takes is not None:
            batch_sizes = batch_sizes or _fixed_batch(self._takes)
        if max_batch is None:
            max_batch = max(batch_sizes) if batch_sizes else 32
        _check(function, max_batch, max_wait_ms, max_waiting, buckets, batch_sizes)
        self._function, self._cut, self._clock = function, cut, clock
        self._max_waiting, self._retries_alone = max_waiting, retry_alone
        self._max_waiting_bytes = max_waiting_bytes
        self._padding = Padding(
            length_dim=length_dim,
            value=pad_value,
            lengths=tuple(buckets) if buckets else None,
            batch_sizes=tuple(batch_sizes) if batch_sizes else None,
            mask=mask,
            lengths_name=lengths,
        )
        read = None if example is None else read_sample(example)
        self._example, self._example_text = None if read is None else read.kind(length_dim), str(read)
        self._first_length: int | None = None
        self._totals = Totals()
        self._mail = LoopMail(give=Request.settle, lost=_unread)
        self._queue = BatchQueue(max_batch, max_wait_ms / 1e3, sort_by_length=sort_by_length)
        self._worker = Worker("whet-batcher", self._queue, self._work, failed=_report, clock=clock)
        self._changed = self._worker.changed  # guards the queue and the totals
        self._worker.start()

    def submit(self, sample: Any) -> "Future[Any]":
        """Queue one sample.

        Args:
            sample: A tensor, or a tuple or dict of tensors, without a batch dimension.

        Returns:
            A future, which can be cancelled. Its result is the function's output for this sample, without a batch
            dimension. If the function raises an exception, all futures of the batch raise it.

        Raises:
            InputsError: The sample does not fit.
            OptionError: The samples differ in length, and `cut` was not given.
            QueueFull: Too many samples are waiting.
            EngineClosed: The batcher is closed.
        """
        future: Future[Any] = Future()
        entry = self._entry(sample, future)
        self._queue_all([entry])
        future.add_done_callback(partial(self._ended, entry))
        return future

    async def run_all(self, samples: Sequence[Any]) -> list[Any]:
        """Queue the samples of one request, all of them or none, and return their results in order.

        Cancelled, it takes back every sample that has not begun to run, and so it does where one of them fails. Raises
        what `submit` and the function raise.
        """
        if not samples:
            return []
        request = Request(len(samples), self._mail, lambda _: self._take_back(entries))
        entries = [self._entry(sample, part) for sample, part in zip(samples, request.parts, strict=True)]
        self._queue_all(entries)
        return await request.whole

    def _queue_all(self, entries: Sequence[QueuedSample]) -> None:
        with self._changed:
            if self._worker.is_stopping:
                raise EngineClosed("the batcher is closed: make a new one")
            self._check_room(entries)
            due_s, now_s = self._queue.due_s(), self._clock()
            for entry in entries:
                entry.arrived_s = now_s
                self._queue.add(entry)
            if due_s is None or (due_s > now_s and self._queue.due_s() != due_s):  # the thread sleeps until then
                self._changed.notify()

    def _check_room(self, entries: Sequence[QueuedSample]) -> None:
        """Raise QueueFull where more samples, or more bytes, would wait than may."""
        waiting, most, most_bytes = self._queue.num_waiting, self._max_waiting, self._max_waiting_bytes
        if waiting + len(entries) > most:
            told = f"{waiting} samples wait already, of {most}"
        elif waiting and most_bytes is not None and self._queue.num_bytes + _num_bytes(entries) > most_bytes:
            told = f"{self._queue.num_bytes} bytes of samples wait already, of {most_bytes}"
        else:
            return
        self._totals.num_refused += len(entries)
        raise QueueFull(f"{told}; send these again later")

    def _take_back(self, entries: Sequence[QueuedSample]) -> None:
        """Take back the samples of a request that was cancelled or has failed."""
        with self._changed:
            for entry in entries:
                if entry.future.cancelled():
                    self._queue.discard(entry)
                    self._totals.num_cancelled += 1

    async def __call__(self, sample: Any) -> Any:
        """Run one sample from a coroutine; see `submit`. Cancelling it removes the sample if it does not run yet."""
        return await asyncio.wrap_future(self.submit(sample))

    def stats(self) -> BatcherStats:
        """Return the statistics so far."""
        with self._changed:
            return self._totals.stats(self._queue.num_waiting)

    def close(self, *, drain: bool = True) -> None:
        """Take no more samples, run the waiting ones (with drain=False, cancel them), and end the thread."""
        with self._changed:
            self._worker.stop(wait=False)
            if not drain:
                for entry in self._queue.clear():
                    entry.future.cancel()
        self._worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self, entry: QueuedSample, future: "Future[Any]") -> None:
        if future.cancelled():
            with self._changed:
                self._queue.discard(entry)
                self._totals.num_cancelled += 1

    def _entry(self, given: Any, future: Answer) -> QueuedSample:
        """Return a queue entry for a sample, whose result goes to `future`.

        Raises:
            InputsError: The sample does not fit.
        """
        sample, dim = read_sample(given), self._padding.length_dim
        kind, length = sample.kind(dim), sample.length(dim)
        if self._takes is not None:
            _check_fits(sample, self._takes, self._padding)
        if self._example is not None and kind != self._example:
            raise InputsError(f"the sample is ({sample}), the example was ({self._example_text}): they must be alike")
        if length is not None:
            self._check_length(length)
        return QueuedSample(sample, kind, length or 0, 0.0, future)

    def _check_length(self, length: int) -> None:
        buckets = self._padding.lengths
        if buckets and length > buckets[-1]:
            raise InputsError(f"the sample's length {length} is above the largest bucket, {buckets[-1]}: shorten it")
        if self._first_length is None:
            self._first_length = length
        if self._cut is None and (length != self._first_length or next_size(length, buckets) != length):
            raise OptionError(
                "samples of different lengths are padded: give cut=True if the outputs have the length dimension too, "
                "so that they are cut to each sample's length, else cut=False"
            )

    def _work(self, batches: list[list[QueuedSample]]) -> None:
        for batch in batches:
            self._run(batch)

    def _run(self, batch: list[QueuedSample]) -> None:
        """Run a batch. All exceptions go to the futures of the batch; this function never raises one."""
        begun = [entry for entry in batch if _begins(entry.future)]
        with self._changed:
            self._queue.begin(batch)
            self._totals.begin(begun, self._clock())
        if begun:
            self._answer(begun)
        self._mail.deliver()

    def _answer(self, begun: list[QueuedSample]) -> None:
        """Run samples as one batch, and hand each its result or what went wrong."""
        try:
            padded = self._padding.batch([entry.sample for entry in begun])
            with torch.no_grad():
                output = self._function(*padded.args, **padded.kwargs)
            results = self._padding.split(output, padded, False if self._cut is None else self._cut)
        except BaseException as error:  # noqa: BLE001 - a thread that ends would leave every caller waiting
            if self._retries_alone and len(begun) > 1:
                for entry in begun:
                    self._answer([entry])
                return
            with self._changed:
                self._totals.num_failed += len(begun)
            for entry in begun:
                with contextlib.suppress(InvalidStateError):
                    entry.future.set_exception(error)
            return
        with self._changed:
            self._totals.num_elements += padded.num_elements
            self._totals.num_padding += padded.num_padding
        for entry, result in zip(begun, results, strict=True):
            with contextlib.suppress(InvalidStateError):  # the caller has set a result itself
                entry.future.set_result(result)


def _begins(future: Answer) -> bool:
    """Return whether a result is still wanted. It is not if the future was cancelled, or its caller has set one."""
    if future.done() and not future.cancelled():
        return False
    return future.set_running_or_notify_cancel()


def _num_bytes(entries: Sequence[QueuedSample]) -> int:
    return sum(entry.num_bytes for entry in entries)


def _unread(request: Request) -> None:
    """Do nothing: the loop of the request's coroutine is closed, so nobody waits for it."""


def _report(error: Exception) -> None:
    """Log a fault of the batcher itself. Exceptions of the function go to its callers instead."""
    _LOG.error("the batcher failed", exc_info=error)


def _check(
    function: Callable[..., Any],
    max_batch: int,
    max_wait_ms: float,
    max_waiting: int,
    buckets: Sequence[int] | None,
    batch_sizes: Sequence[int] | None,
) -> None:
    """Raise OptionError for options out of range, and for a module in training mode."""
    if isinstance(function, nn.Module) and function.training:
        raise OptionError("the module is in training mode, where samples of a batch change each other: call .eval()")
    if max_batch < 1 or max_waiting < 1 or not 0 <= max_wait_ms < float("inf"):
        raise OptionError("max_batch and max_waiting must be at least 1, and max_wait_ms a finite number of at least 0")
    for name, sizes in (("buckets", buckets), ("batch_sizes", batch_sizes)):
        if sizes is not None and (not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1):
            raise OptionError(f"{name} {list(sizes)}: give sizes of at least 1, in rising order")
    if batch_sizes and max_batch > batch_sizes[-1]:
        raise OptionError(f"max_batch {max_batch} is above the largest batch that the model takes, {batch_sizes[-1]}")


def _fixed_batch(takes: Sequence[Argument]) -> tuple[int, ...] | None:
    """Return the batch sizes to which an artefact is fixed, or None if it takes any."""
    sizes = {argument.shape[0] for argument in takes if argument.shape}
    return tuple(size for size in sizes if size is not None) or None


def _check_fits(sample: Sample, takes: Sequence[Argument], padding: Padding) -> None:
    """Raise InputsError if an artefact could not take the sample in any batch."""
    wanted = {place if argument.name is None else argument.name: argument for place, argument in enumerate(takes)}
    fits = wanted.keys() == sample.tensors.keys() and all(
        str(tensor.dtype) == f"torch.{wanted[key].dtype}"
        and tensor.dim() + 1 == len(wanted[key].shape)
        and all(
            want in (None, next_size(size, padding.lengths) if dim == padding.length_dim else size)
            for dim, (size, want) in enumerate(zip(tensor.shape, wanted[key].shape[1:], strict=True))
        )
        for key, tensor in sample.tensors.items()
    )
    if not fits:
        raise InputsError(
            f"the sample is ({sample}); the model takes batches of ({', '.join(map(str, takes))}): give one sample, "
            "without the first dimension"
        )
