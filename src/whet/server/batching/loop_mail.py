"""Bring items from a worker's thread to asyncio loops. Each loop is woken once for many items."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class LoopMail(Generic[Item]):
    """Collect items for event loops. One thread at a time collects and delivers them.

    Waking a loop costs a system call, after which the loop's thread competes for the interpreter's lock. Once for each
    batch is much cheaper than once for each item.

    Args:
        give: Called in an item's loop with the item. It must not raise an exception.
        lost: Called in place of `give`, on the worker's thread, where the loop is closed.
    """

    def __init__(self, give: Callable[[Item], None], lost: Callable[[Item], None]) -> None:
        self._give, self._lost = give, lost
        self._waiting: dict[asyncio.AbstractEventLoop, list[Item]] = {}

    def put(self, loop: asyncio.AbstractEventLoop, item: Item) -> None:
        """Keep an item until `deliver`."""
        self._waiting.setdefault(loop, []).append(item)

    def deliver(self) -> None:
        """Send what was collected since the last call to the loops."""
        waiting, self._waiting = self._waiting, {}
        for loop, items in waiting.items():
            try:
                loop.call_soon_threadsafe(self._give_all, items)
            except RuntimeError:  # the loop is closed
                for item in items:
                    self._lost(item)

    def _give_all(self, items: list[Item]) -> None:
        for item in items:
            self._give(item)
