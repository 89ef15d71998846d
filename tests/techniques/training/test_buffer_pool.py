"""A pool of host buffers: nobody's memory is lent twice, the cap holds, and the statistics add up."""

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import whet
from whet.errors import OptionError
from whet.techniques.mechanisms.buffer_pool import BufferPool, size_of_block
from whet.techniques.mechanisms.device_copies import Staging

CAP = 8192
SHAPES = st.lists(st.integers(0, 12), max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64])


class Event:
    """Happen when a test says so."""

    def __init__(self) -> None:
        self.has_happened = False

    def query(self) -> bool:
        return self.has_happened


def place(x: Tensor) -> tuple[int, int]:
    """Return where a tensor's storage begins and ends."""
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


class AnyUse(RuleBasedStateMachine):
    """Buffers come, are kept as views, are guarded and go, in any order; with a cap and without."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(None, pinned=False)
        self.cap: int | None = None
        self.live: list[tuple[Tensor, int]] = []  # a buffer or a view of one, and the number that fills it
        self.guarded: list[tuple[tuple[int, int], Event]] = []
        self.num_taken = self.num_given = 0

    @initialize(cap=st.sampled_from([None, 0, 1024, CAP]))
    def begin(self, cap: int | None) -> None:
        self.cap = cap
        self.pool = BufferPool(cap, pinned=False)

    @rule(shape=SHAPES, dtype=DTYPES, is_view=st.booleans())
    def take(self, shape: list[int], dtype: torch.dtype, is_view: bool) -> None:
        buffer = self.pool.take(shape, dtype)
        assert (list(buffer.shape), buffer.dtype, buffer.is_contiguous()) == (shape, dtype, True)
        assert not buffer._is_view()
        begin, end = place(buffer)
        for (first, last), event in self.guarded:
            assert event.has_happened or begin == end or end <= first or last <= begin, "a copy still goes on here"
        self.num_taken += 1
        buffer.fill_(self.num_taken % 2)
        self.live.append((buffer.view(-1) if is_view else buffer, self.num_taken % 2))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), is_explicit=st.booleans(), guards=st.booleans())
    def give_back(self, data: Any, is_explicit: bool, guards: bool) -> None:
        buffer, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        if guards:
            event = Event()
            self.guarded.append((place(buffer), event))
            self.pool.guard(buffer, event)
        if is_explicit:
            self.pool.release(buffer)
            with pytest.raises(OptionError, match="has it back already"):
                self.pool.release(buffer)

    @precondition(lambda self: self.guarded)
    @rule(data=st.data())
    def copy_ends(self, data: Any) -> None:
        self.guarded.pop(data.draw(st.integers(0, len(self.guarded) - 1)))[1].has_happened = True

    @rule()
    def trim(self) -> None:
        before = self.pool.statistics()
        assert self.pool.trim() == before.held_bytes - before.in_use_bytes
        after = self.pool.statistics()
        assert after.held_bytes == after.in_use_bytes == before.in_use_bytes

    @invariant()
    def nothing_is_shared(self) -> None:
        places = sorted(place(buffer) for buffer, _ in self.live if buffer.numel())
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
        for buffer, number in self.live:
            assert bool((buffer == number).all())

    @invariant()
    def statistics_add_up(self) -> None:
        found = self.pool.statistics()
        assert found.num_requests == self.num_taken == found.num_hits + found.num_grown + found.num_overflowed
        assert found.held_bytes <= (self.cap if self.cap is not None else found.held_bytes)
        assert 0 <= found.in_use_bytes <= found.held_bytes
        assert found.in_use_bytes + found.outside_bytes <= found.peak_bytes
        least = sum(buffer.nbytes for buffer, _ in self.live)
        assert found.in_use_bytes + found.outside_bytes >= least
        if not self.live and all(event.has_happened for _, event in self.guarded):
            assert found.in_use_bytes == found.outside_bytes == 0
        if self.cap is None:
            assert found.num_overflowed == found.num_evicted == found.outside_bytes == 0


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 2**40), st.booleans())
def test_blocks_are_little_larger_than_what_is_asked_for(num_bytes: int, is_pinned: bool) -> None:
    size = size_of_block(num_bytes, is_pinned=is_pinned)
    assert size > 0 and num_bytes <= size
    assert size - num_bytes < max(513, num_bytes if is_pinned else num_bytes / 8)
    assert size_of_block(size, is_pinned=is_pinned) == size
    if is_pinned:
        assert size.bit_count() == 1, "as PyTorch allocates it"


def test_memory_is_used_again() -> None:
    pool = whet.BufferPool(pinned=False)
    first = pool.take((100, 7), torch.float32)
    where = first.data_ptr()
    del first
    again = pool.take((7, 50), torch.float64)
    assert again.data_ptr() == where
    other = pool.take((7, 50), torch.float64)
    assert other.data_ptr() != where
    found = pool.statistics()
    assert (found.num_requests, found.num_hits, found.num_grown) == (3, 1, 2)
    size = size_of_block(2800, is_pinned=False)
    assert (found.in_use_bytes, found.held_bytes, found.peak_bytes) == (2 * size, 2 * size, 2 * size)


def test_what_autograd_or_a_view_still_holds_is_not_lent() -> None:
    pool = BufferPool(pinned=False)
    weight = torch.ones(64, requires_grad=True)
    x = pool.take((4, 64)).fill_(3.0)
    where = x.data_ptr()
    loss = (x[:2] * weight).sum()  # autograd saves the view
    del x
    other = pool.take((4, 64)).fill_(5.0)
    assert other.data_ptr() != where
    loss.backward()
    assert weight.grad is not None and bool((weight.grad == 6.0).all())
    del loss
    assert pool.take((4, 64)).data_ptr() == where


def test_beyond_the_cap_memory_comes_from_outside_and_unused_blocks_make_room() -> None:
    pool = BufferPool(cap_bytes=4096, pinned=False)
    first, second, third = (pool.take((2048,), torch.uint8) for _ in range(3))
    found = pool.statistics()
    assert (found.num_grown, found.num_overflowed) == (2, 1)
    assert (found.held_bytes, found.outside_bytes, found.peak_bytes) == (4096, 2048, 6144)
    del third
    assert pool.statistics().outside_bytes == 0
    del first
    large = pool.take((4096,), torch.uint8)
    found = pool.statistics()
    assert (found.num_overflowed, found.num_evicted) == (2, 0), "to give up the unused block would not be enough"
    del second, large
    _kept = pool.take((4096,), torch.uint8)
    found = pool.statistics()
    assert (found.num_overflowed, found.num_evicted, found.num_hits) == (2, 2, 0)
    assert (found.in_use_bytes, found.held_bytes) == (4096, 4096)


def test_a_guarded_block_waits_for_all_its_events() -> None:
    pool = BufferPool(pinned=False)
    first, second = Event(), Event()
    buffer = pool.take((1000,))
    where = buffer.data_ptr()
    pool.guard(buffer, first)
    pool.guard(buffer[10:], second)
    pool.release(buffer)
    first.has_happened = True
    assert pool.take((1000,)).data_ptr() != where
    assert pool.statistics().in_use_bytes == size_of_block(4000, is_pinned=False)
    second.has_happened = True
    places = {(kept := pool.take((1000,))).data_ptr(), pool.take((1000,)).data_ptr()}
    assert where in places
    del kept


def test_a_buffer_for_a_copy_has_the_strides_of_the_tensor() -> None:
    pool = BufferPool(pinned=False)
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for x in (images, torch.randn(6, 5).t(), torch.randn(6, 5)):
        buffer = pool.like(x.requires_grad_() if x.is_leaf else x)
        assert (buffer.shape, buffer.stride(), buffer.requires_grad) == (x.shape, x.stride(), False)
    apart = torch.randn(6, 8)[:, ::2]
    assert pool.like(apart).is_contiguous()
    assert pool.like(torch.randn(3, 1).expand(3, 4)).copy_(torch.ones(3, 4)).sum() == 12


def test_what_cannot_be_is_refused() -> None:
    pool, other = BufferPool(pinned=False), BufferPool(pinned=False)
    with pytest.raises(OptionError, match="cap_bytes must be 0 or more"):
        BufferPool(-1)
    with pytest.raises(OptionError, match="sizes of a buffer"):
        pool.take((2, -1))
    for foreign in (torch.ones(3), other.take((3,))):
        with pytest.raises(OptionError, match="no buffer that the pool has lent"):
            pool.release(foreign)
        with pytest.raises(OptionError, match="no buffer that the pool has lent"):
            pool.guard(foreign, Event())
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="CUDA finds none"):
            BufferPool(pinned=True)
        assert not BufferPool().is_pinned


def test_a_buffer_outlives_its_pool() -> None:
    pool = BufferPool(pinned=False)
    buffer = pool.take((1000,)).fill_(7.0)
    del pool
    gc.collect()
    _others = [torch.zeros(1000) for _ in range(50)]
    assert bool((buffer == 7.0).all())


def test_a_collection_inside_of_the_pool_waits_for_nothing() -> None:
    """The garbage collector may end a buffer in the middle of a request."""
    pool = BufferPool(pinned=False)

    class Cycle:
        def __init__(self) -> None:
            self.own, self.buffer = self, pool.take((10,))

    original = pool._allocated

    def allocated(num_bytes: int) -> Tensor:
        gc.collect()
        return original(num_bytes)

    pool._allocated = allocated  # type: ignore[method-assign]
    for _ in range(5):
        Cycle()
        _kept = pool.take((5000,))
    assert pool.statistics().num_requests == 10


def test_threads_get_buffers_of_their_own() -> None:
    pool = BufferPool(cap_bytes=64 * 1024, pinned=False)
    wrong: list[str] = []
    num_rounds, num_threads = 300, 4

    def work(number: int) -> None:
        kept: list[Tensor] = []
        for i in range(num_rounds):
            buffer = pool.take((1 + (i * 37 + number) % 500,), torch.int64).fill_(number)
            kept.append(buffer)
            if len(kept) > 3:
                oldest = kept.pop(0)
                if not bool((oldest == number).all()):
                    wrong.append(f"thread {number}, round {i}")
                if i % 2:
                    pool.release(oldest)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    gc.collect()
    found = pool.statistics()
    assert found.num_requests == num_threads * num_rounds == found.num_hits + found.num_grown + found.num_overflowed
    assert found.in_use_bytes == found.outside_bytes == 0
    assert found.held_bytes <= 64 * 1024
    assert pool.trim() == found.held_bytes


def test_a_default_device_changes_nothing() -> None:
    with torch.device("meta"):
        assert BufferPool(pinned=False).take((3,)).device.type == "cpu"


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    yield BufferPool(pinned=False)


def test_batches_are_laid_into_buffers_that_wait_for_the_copy(pool: BufferPool) -> None:
    """What device_copies does before a GPU copies, with an event of a test."""
    batches = [torch.arange(1000.0).reshape(10, 100) + i for i in range(3)]
    events, places = [], []
    for batch in batches:
        staging, event = Staging(pool), Event()
        buffer = staging.staged(batch.t())
        assert torch.equal(buffer, batch.t())
        assert buffer.data_ptr() != batch.data_ptr()
        places.append(buffer.data_ptr())
        del buffer
        staging.end(event)
        events.append(event)
    assert len(set(places)) == 3
    events[1].has_happened = True
    assert Staging(pool).staged(batches[0]).data_ptr() == places[1]
    assert pool.statistics().num_hits == 1


@pytest.mark.gpu
def test_pinned_buffers_on_a_gpu() -> None:
    pool = BufferPool()
    assert pool.is_pinned
    x = torch.randn(1000, 1000, device="cuda")
    for _ in range(20):
        buffer = pool.like(x)
        assert buffer.is_pinned()
        buffer.copy_(x, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        pool.guard(buffer, event)
        event.synchronize()
        assert torch.equal(buffer, x.cpu())
        del buffer
    found = pool.statistics()
    assert (found.num_grown, found.num_hits) == (1, 19)
    assert pool.trim() == found.held_bytes == 2**22
