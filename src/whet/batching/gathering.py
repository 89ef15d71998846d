"""One future for the samples of one request."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any


def gathered(futures: Sequence["Future[Any]"]) -> "Future[list[Any]]":
    """Return a future of all results, in order.

    It fails as soon as one of the futures does, and the others are then cancelled. Cancel it to cancel all of them.
    """
    whole: Future[list[Any]] = Future()
    if not futures:
        whole.set_result([])
        return whole
    lock = threading.Lock()
    num_left = len(futures)

    def ended(future: "Future[Any]") -> None:
        nonlocal num_left
        with lock:
            num_left -= 1
            is_last = not num_left
        if future.cancelled() or future.exception() is not None:
            if not whole.done():
                _end(whole, future)
                for other in futures:
                    other.cancel()
        elif is_last and not whole.done():
            with suppress(InvalidStateError):  # cancelled meanwhile
                whole.set_result([one.result() for one in futures])

    def cancelled(future: "Future[list[Any]]") -> None:
        if future.cancelled():
            for one in futures:
                one.cancel()

    whole.add_done_callback(cancelled)
    for future in futures:
        future.add_done_callback(ended)
    return whole


def _end(whole: "Future[list[Any]]", failed: "Future[Any]") -> None:
    """End the whole as one of its futures ended."""
    if failed.cancelled():
        whole.cancel()
        return
    with suppress(InvalidStateError):
        whole.set_exception(failed.exception())
