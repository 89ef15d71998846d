"""Fetch the next batches in a thread while the loop computes on the present one.

The order of the batches and the numbers that the data draws stay as they were. What a loader draws from PyTorch's
generator when a pass begins (the order of the rows) is drawn in the loop's own thread, at the same moment as before:
the first two batches are fetched there. The second fetch is watched. Where it draws from the generators of Python,
NumPy or PyTorch, a thread would draw at other moments, between what the model draws. Then no thread is started, and a
warning says so. The same holds for a loader that fills the same memory again for each batch.
"""

import contextlib
import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from whet.core.workload.training import generator_states
from whet.techniques.mechanisms.device_copies import DeviceCopies
from whet.techniques.mechanisms.random_draws import same_states
from whet.techniques.mechanisms.thread_settings import thread_settings

_LOG = logging.getLogger("whet")
_MOST_WAIT_S = 10.0  # for a fetch in progress when a pass ends early; the thread ends with that fetch in any case

Prepare = Callable[[Any], Callable[[], Any]]
"""Take a batch in the thread, and return what the loop calls to get it."""


class Prefetched:
    """Stand in front of a loader: its passes fetch some batches ahead.

    Everything else is the loader's own: its length, its attributes, and isinstance.
    """

    __slots__ = ("__weakref__", "_whet_depth", "_whet_device", "_whet_source")

    def __init__(self, source: Iterable[Any], depth: int = 2, device: torch.device | None = None) -> None:
        """Wrap a loader.

        Args:
            source: The loader. Each pass calls iter() on it.
            depth: The most batches that are fetched ahead, 1 or more.
            device: The CUDA device that batches are copied to; None leaves them where they are.
        """
        for name, value in (("_whet_source", source), ("_whet_depth", depth), ("_whet_device", device)):
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        """Return one pass. What the loader draws when a pass begins is drawn here."""
        return _Pass(iter(self._whet_source), self._whet_depth, self._whet_device)

    def __len__(self) -> int:
        return len(self._whet_source)

    def __bool__(self) -> bool:
        """Return the loader's truth value: loaders without a length are true."""
        return bool(self._whet_source)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the loader's class, so that isinstance holds as before."""
        return type(self._whet_source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whet_source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._whet_source, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._whet_source, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how pickle and copy make this object again, around a copy of the loader."""
        return Prefetched, (self._whet_source, self._whet_depth, self._whet_device)

    def __repr__(self) -> str:
        return f"Prefetched({self._whet_source!r}, depth={self._whet_depth})"


def is_prefetched(batches: object) -> bool:
    """Return whether a loader fetches ahead already. isinstance would ask the loader behind."""
    return type(batches) is Prefetched


class _Shared:
    """Hold what the loop and the thread of one pass both use. The thread holds no reference to the pass itself."""

    def __init__(self, batches: Iterator[Any], depth: int, prepare: Prepare) -> None:
        self.batches: Iterator[Any] | None = batches
        self.prepare: Prepare | None = prepare
        self.depth = depth
        self.changed = threading.Condition()
        self.ready: deque[Callable[[], Any]] = deque()
        self.error: BaseException | None = None
        self.has_ended = False  # the loader has given its last batch, or has raised
        self.is_closed = False  # the loop wants no more
        self.thread: threading.Thread | None = None
        self.process = os.getpid()

    def start(self) -> None:
        """Start the thread, with the loop's own settings of PyTorch and its context variables."""
        settings, context = thread_settings(), contextvars.copy_context()
        name = "whet prefetch"
        self.thread = threading.Thread(target=context.run, args=(self.run, settings), daemon=True, name=name)
        self.thread.start()

    def run(self, settings: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Fetch batch after batch, in the thread."""
        error: BaseException | None = None
        try:
            with settings():
                while self._has_room():
                    assert self.batches is not None
                    assert self.prepare is not None
                    give = self.prepare(next(self.batches))
                    with self.changed:
                        self.ready.append(give)
                        self.changed.notify_all()
                    del give  # this thread must not keep a batch that the loop has done with
        except StopIteration:
            pass
        except BaseException as caught:  # noqa: BLE001 - the loop raises it
            error = caught
        with self.changed:
            self.error, self.has_ended = error, True
            self.ready = deque() if self.is_closed else self.ready
            self.batches = self.prepare = None  # a generator's `finally` runs now
            self.changed.notify_all()
        error = None  # its traceback holds this frame

    def _has_room(self) -> bool:
        """Wait until fewer batches than `depth` are ready, and return True; return False once the loop has ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_closed or len(self.ready) < self.depth)
            return not self.is_closed

    def take(self) -> Any:
        """Return the next batch, in the loop's thread.

        Raises:
            StopIteration: There are no more batches.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self.has_ended or self.is_closed)
            if self.ready:
                give = self.ready.popleft()
                self.changed.notify_all()
            else:
                error, self.error = self.error, None
                if error is not None:
                    raise error  # its traceback shows where in the loader it was raised
                raise StopIteration
        return give()

    def close(self) -> None:
        """End the thread, and release the loader and the batches that nobody took."""
        if os.getpid() != self.process:
            return  # a forked child has no such thread
        with self.changed:
            self.is_closed = True
            self.ready.clear()
            self.changed.notify_all()
            thread = self.thread
        if thread is None:
            self.batches = None
        elif thread is not threading.current_thread():
            thread.join(_MOST_WAIT_S)


class _Pass:
    """Give the batches of one pass: two fetched in the loop's own thread, then what the thread has fetched."""

    def __init__(self, batches: Iterator[Any], depth: int, device: torch.device | None) -> None:
        copies = None if device is None else DeviceCopies(device)
        self._prepare: Prepare = _as_it_is if copies is None else copies.copied
        self._shared = _Shared(batches, depth, self._prepare)
        self._num_given = 0
        self._first: Any = None
        self._stays_here = False
        self._close = weakref.finalize(self, self._shared.close)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._num_given >= 2 and not self._stays_here:
            return self._shared.take()
        if self._shared.batches is None:
            raise StopIteration
        return self._fetch_here()

    def close(self) -> None:
        """End the pass: no thread is left behind."""
        self._close()

    def _fetch_here(self) -> Any:
        """Fetch a batch in the loop's thread. Start the thread after the second, where it may be."""
        shared = self._shared
        assert shared.batches is not None
        before = generator_states() if self._num_given == 1 else None
        try:
            batch = next(shared.batches)
        except BaseException:
            self._first = shared.batches = None
            raise
        self._num_given += 1
        if self._num_given == 1:
            self._first = batch
        elif before is not None:
            first, self._first = self._first, None
            if why := _why_not(before, first, batch):
                self._stays_here = True
                _LOG.warning("prefetch: batches are fetched in the loop itself: %s", why)
            else:
                give = self._prepare(batch)
                shared.start()
                return give()
        return self._prepare(batch)()


def _as_it_is(batch: Any) -> Callable[[], Any]:
    return lambda: batch


def _why_not(before: Any, first: Any, second: Any) -> str:
    """Return why no thread may fetch: the second batch drew numbers, or lies in the memory of the first."""
    if not same_states(before, generator_states()):
        return "the data draws random numbers while it is read, and a thread would draw them at other moments"
    places = {_place(x) for x in tree_leaves(first) if isinstance(x, Tensor) and x.numel()}
    if any(_place(x) in places for x in tree_leaves(second) if isinstance(x, Tensor) and x.numel()):
        return "two batches lie in the same memory, so that the next one may overwrite the one before"
    return ""


def _place(x: Tensor) -> tuple[str, int]:
    """Return where a tensor's numbers begin."""
    return str(x.device), x.data_ptr()
