"""Hand out buffers of the host's memory from blocks that are kept and used again: whet.BufferPool.

A block is one allocation, and a buffer is a tensor in a block of its own, so that no two live buffers share memory. The
block comes back when the last tensor in it is gone, a view or what autograd has saved included: the memory of these
tensors belongs to a NumPy array, whose end Python tells. A copy to or from a device may go on after that. `guard` names
the event that it ends with, and the block waits for it.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.errors import OptionError

_LEAST_BYTES = 512  # of a block
_STEPS = 8  # sizes of blocks between one power of two and the next


class Event(Protocol):
    """Tell whether a copy has ended, as torch.cuda.Event does."""

    def query(self) -> bool:
        """Return whether everything before the event has been done."""
        ...


@dataclass(frozen=True, kw_only=True)
class PoolStatistics:
    """Hold what a pool has done so far, and what it holds now.

    A request is a hit, grows the pool, or overflows. The bytes are those of whole blocks.

    Attributes:
        num_requests: Buffers that were asked for.
        num_hits: Requests that were served from memory that the pool held.
        num_grown: Requests for which the pool allocated a block that it keeps.
        num_overflowed: Requests for which there was no room under the cap. They got memory outside of the pool.
        num_evicted: Unused blocks that were given up to make room under the cap.
        in_use_bytes: Blocks of the pool that are lent, or that a copy still reads or writes.
        held_bytes: All blocks of the pool, at most the cap.
        outside_bytes: Live memory outside of the pool.
        peak_bytes: The most that was in use at once, in the pool and outside of it.
    """

    num_requests: int = 0
    num_hits: int = 0
    num_grown: int = 0
    num_overflowed: int = 0
    num_evicted: int = 0
    in_use_bytes: int = 0
    held_bytes: int = 0
    outside_bytes: int = 0
    peak_bytes: int = 0


@dataclass(eq=False)
class _Block:
    """Hold one allocation.

    Attributes:
        memory: Its bytes, uint8.
        is_kept: Whether the pool keeps it for later requests.
        events: What has to have happened before it is used again.
    """

    memory: Tensor
    is_kept: bool
    events: list[Event] = field(default_factory=list)

    def is_free(self) -> bool:
        """Return whether no copy reads or writes the block any more."""
        self.events = [event for event in self.events if not event.query()]
        return not self.events


@dataclass(eq=False)
class _Loan:
    """Connect a block with the storage of the tensors that use it.

    Attributes:
        key: The storage's address. Another storage may have it after the loan has ended.
        has_ended: Whether the buffer was released, or its last tensor is gone.
        finalizer: What notices that.
    """

    block: _Block
    key: int
    has_ended: bool = False
    finalizer: Any = None

    def end(self, ended: "deque[_Loan]") -> None:
        """Note the end. A finalizer may call this in any thread and at any line, so it takes no lock."""
        self.has_ended = True
        ended.append(self)


class BufferPool:
    """Hand out buffers of the host's memory, and use their memory again.

        pool = whet.BufferPool(cap_bytes=2**30)
        buffer = pool.take((256, 1024), torch.float32)

    Memory comes in size classes: powers of two for pinned memory, as PyTorch allocates it, otherwise eight sizes
    between one power of two and the next. A buffer's memory comes back when its last tensor is gone, or by `release`.
    All methods may be called from any thread.
    """

    def __init__(self, cap_bytes: int | None = None, pinned: bool | None = None) -> None:
        """Make an empty pool.

        Args:
            cap_bytes: The most bytes that the pool holds. A request beyond it gets memory outside of the pool, which is
                counted and not kept. None sets no limit.
            pinned: Whether to pin the memory, so that a GPU copies it by itself. None pins it where there is CUDA; that
                is looked up at the first request.

        Raises:
            OptionError: The cap is negative, or memory shall be pinned without CUDA.
        """
        if cap_bytes is not None and cap_bytes < 0:
            raise OptionError(f"cap_bytes must be 0 or more, or None for no limit; got {cap_bytes}")
        if pinned and not torch.cuda.is_available():
            raise OptionError("memory is pinned for a GPU, and CUDA finds none here; leave pinned out")
        self._cap_bytes = cap_bytes
        self._pinned = pinned
        self._lock = threading.Lock()
        self._ended: deque[_Loan] = deque()  # finalizers append here
        self._loans: dict[int, _Loan] = {}
        self._waiting: list[_Block] = []  # for their events
        self._unused: dict[int, deque[_Block]] = {}  # by size, the latest last
        self._unused_bytes = self._held_bytes = self._outside_bytes = self._peak_bytes = 0
        self._num_hits = self._num_grown = self._num_overflowed = self._num_evicted = 0

    @property
    def is_pinned(self) -> bool:
        """Return whether the pool pins its memory."""
        if self._pinned is None:
            self._pinned = torch.cuda.is_available()
        return self._pinned

    def take(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a contiguous buffer. What it holds is arbitrary.

        Raises:
            OptionError: A size is negative.
        """
        if any(size < 0 for size in shape):
            raise OptionError(f"the sizes of a buffer are 0 or more; got {tuple(shape)}")
        return self._lent(torch.empty(tuple(shape), dtype=dtype, device="meta"))

    def like(self, x: Tensor) -> Tensor:
        """Return a buffer for a copy of a tensor, of any device, with its shape and dtype.

        The strides are the tensor's own where its numbers lie densely in memory. Otherwise the buffer is contiguous.
        """
        return self._lent(torch.empty_like(x, device="meta", requires_grad=False))

    def guard(self, buffer: Tensor, event: Event) -> None:
        """Keep a buffer's memory from being used again before an event has happened, whenever the buffer is released.

        Args:
            buffer: A live buffer of this pool, or a view of one.
            event: Such as a torch.cuda.Event that was recorded after a copy.

        Raises:
            OptionError: The pool has not lent this buffer, or has it back.
        """
        with self._lock:
            block = self._loan_of(buffer).block
            block.events = [*(known for known in block.events if not known.query()), event]

    def release(self, buffer: Tensor) -> None:
        """Take a buffer back at once. Nobody may use it, or a view of it, any more.

        Args:
            buffer: A live buffer of this pool, or a view of one.

        Raises:
            OptionError: The pool has not lent this buffer, or has it back.
        """
        with self._lock:
            loan = self._loan_of(buffer)
            loan.finalizer.detach()
            loan.end(self._ended)
            self._collect()

    def statistics(self) -> PoolStatistics:
        """Return what the pool has done so far, and what it holds now."""
        with self._lock:
            self._collect()
            return PoolStatistics(
                num_requests=self._num_hits + self._num_grown + self._num_overflowed,
                num_hits=self._num_hits,
                num_grown=self._num_grown,
                num_overflowed=self._num_overflowed,
                num_evicted=self._num_evicted,
                in_use_bytes=self._held_bytes - self._unused_bytes,
                held_bytes=self._held_bytes,
                outside_bytes=self._outside_bytes,
                peak_bytes=self._peak_bytes,
            )

    def trim(self) -> int:
        """Give up all blocks that nobody uses, and return how many bytes they had.

        Pinned memory goes back to PyTorch, which keeps it for whatever is pinned next.
        """
        with self._lock:
            self._collect()
            given = self._unused_bytes
            self._unused.clear()
            self._held_bytes -= given
            self._unused_bytes = 0
            return given

    def _lent(self, like: Tensor) -> Tensor:
        """Return a buffer with the shape, the strides and the dtype of a tensor without memory."""
        num_bytes = like.numel() * like.itemsize
        with self._lock:
            self._collect()
            block = self._block(num_bytes)
            in_use = self._held_bytes - self._unused_bytes + self._outside_bytes
            self._peak_bytes = max(self._peak_bytes, in_use)
            array = block.memory.numpy()[:num_bytes]
            storage = torch.from_numpy(array).untyped_storage()
            loan = _Loan(block, storage._cdata)
            loan.finalizer = weakref.finalize(array, loan.end, self._ended)
            loan.finalizer.atexit = False
            self._loans[loan.key] = loan
        del array
        return torch.empty(0, dtype=like.dtype, device="cpu").set_(storage, 0, like.shape, like.stride())

    def _block(self, num_bytes: int) -> _Block:
        """Return a block for a request: an unused one, a new one, or one outside of the pool."""
        size = size_of_block(num_bytes, is_pinned=self.is_pinned)
        if unused := self._unused.get(size):
            self._unused_bytes -= size
            self._num_hits += 1
            return unused.pop()
        cap = math.inf if self._cap_bytes is None else self._cap_bytes
        if self._held_bytes - self._unused_bytes + size > cap:
            block = _Block(self._allocated(num_bytes), is_kept=False)
            self._outside_bytes += block.memory.nbytes
            self._num_overflowed += 1
            return block
        for evicted in self._evicted(self._held_bytes + size - cap):
            self._held_bytes -= evicted
            self._num_evicted += 1
        block = _Block(self._allocated(size), is_kept=True)
        self._held_bytes += size
        self._num_grown += 1
        return block

    def _evicted(self, num_bytes: float) -> Iterator[int]:
        """Give up unused blocks, the largest first, and yield their bytes until there are this many."""
        for size in sorted(self._unused, reverse=True):
            blocks = self._unused[size]
            while blocks and num_bytes > 0:
                blocks.popleft()
                self._unused_bytes -= size
                num_bytes -= size
                yield size

    def _allocated(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=self.is_pinned)

    def _collect(self) -> None:
        """Take back the blocks whose buffers have ended, once their events have happened."""
        while self._ended:
            loan = self._ended.popleft()
            if self._loans.get(loan.key) is loan:
                del self._loans[loan.key]
            self._waiting.append(loan.block)
        waiting, self._waiting = self._waiting, []
        for block in waiting:
            if not block.is_free():
                self._waiting.append(block)
            elif block.is_kept:
                size = block.memory.nbytes
                self._unused.setdefault(size, deque()).append(block)
                self._unused_bytes += size
            else:
                self._outside_bytes -= block.memory.nbytes

    def _loan_of(self, buffer: Tensor) -> _Loan:
        loan = self._loans.get(buffer.untyped_storage()._cdata)
        if loan is None or loan.has_ended:
            raise OptionError("this tensor is no buffer that the pool has lent, or the pool has it back already")
        return loan


def size_of_block(num_bytes: int, *, is_pinned: bool) -> int:
    """Return the bytes of the block for a request. PyTorch itself rounds pinned memory up to a power of two."""
    power = 1 << max(num_bytes - 1, _LEAST_BYTES - 1).bit_length()  # the next power of two
    if is_pinned:
        return power
    step = max(power // (2 * _STEPS), _LEAST_BYTES)
    return max(-(-num_bytes // step), 1) * step


HOST_BUFFERS = BufferPool()
"""Hand out the buffers for whet's own copies to and from a GPU."""
