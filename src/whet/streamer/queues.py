"""Hand items from thread to thread through a bounded queue. A full one drops its oldest item, or its giver waits."""

import threading
from collections import deque
from typing import Generic, TypeVar

from whet.errors import OptionError

Item = TypeVar("Item")


class Closed(Exception):
    """The queue takes no more items, or holds none and will get none."""


class FrameQueue(Generic[Item]):
    """Hold at most `capacity` items, first in, first out. Any number of threads may put and get.

    Args:
        drops_oldest: Whether an item that finds the queue full takes the oldest one's place. Otherwise `put` waits.

    Raises:
        OptionError: The capacity is below 1.
    """

    def __init__(self, capacity: int, *, drops_oldest: bool) -> None:
        if capacity < 1:
            raise OptionError(f"a queue of frames holds at least 1 frame; got {capacity}")
        self._capacity, self._drops_oldest = capacity, drops_oldest
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, item: Item) -> Item | None:
        """Add an item, and return the one that it drove out, if any.

        Raises:
            Closed: The queue was closed before the item was taken in.
        """
        with self._changed:
            while len(self._items) >= self._capacity and not self._drops_oldest and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise Closed
            dropped = self._items.popleft() if len(self._items) >= self._capacity else None
            self._items.append(item)
            self._changed.notify_all()
            return dropped

    def get(self, timeout_s: float | None = None) -> Item | None:
        """Remove and return the oldest item. It waits for one, and returns None when the time is up.

        Args:
            timeout_s: The most seconds to wait; None waits until there is an item or the queue is closed.

        Raises:
            Closed: The queue is closed and empty.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._items or self._is_closed, timeout_s):
                return None
            if not self._items:
                raise Closed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self, *, discard: bool = False) -> None:
        """Take no more items. Those that wait may still be taken, unless `discard` drops them without counting them."""
        with self._changed:
            self._is_closed = True
            if discard:
                self._items.clear()
            self._changed.notify_all()
