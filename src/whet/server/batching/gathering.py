"""Give all samples of a request one result. A future for each sample would cost more than everything else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from whet.server.batching.loop_mail import LoopMail


class Request:
    """Collect the results of one request's samples, for a coroutine that awaits them.

    The worker's thread gives the results, and the loop's thread cancels. Whichever ends the request first wins.

    Attributes:
        whole: The loop's future of all results, in order. It fails as soon as one sample does. Cancel it to take back
            every sample that has not begun to run.
        parts: Where the result of each sample goes.
        is_over: Whether no further result is wanted.
    """

    __slots__ = ("_error", "_loop", "_mail", "_num_left", "_results", "_taken_back", "is_over", "parts", "whole")

    def __init__(self, num_samples: int, mail: "LoopMail[Request]", taken_back: Callable[["Request"], None]) -> None:
        """Make the parts, one at least. Call this in the loop.

        Args:
            mail: Brings the ended request to its loop, where `settle` is called.
            taken_back: Called once, in any thread, where the request fails or is cancelled before its end.
        """
        self._loop = asyncio.get_running_loop()
        self.whole: asyncio.Future[list[Any]] = self._loop.create_future()
        self.parts = [Part(self, place) for place in range(num_samples)]
        self.is_over = False
        self._results: list[Any] = [None] * num_samples
        self._num_left = num_samples
        self._error: BaseException | None = None
        self._mail, self._taken_back = mail, taken_back
        self.whole.add_done_callback(self._was_cancelled)

    def put(self, place: int, result: Any) -> None:
        """Give the result of one sample, on the worker's thread."""
        self._results[place] = result
        self._num_left -= 1
        if not self._num_left and not self.is_over:
            self.is_over = True
            self._mail.put(self._loop, self)

    def fail(self, error: BaseException | None) -> None:
        """Give what went wrong with one sample, on the worker's thread."""
        if not self.is_over:  # another one has not failed first
            self.is_over, self._error = True, error
            self._mail.put(self._loop, self)
            self._taken_back(self)

    def cancel(self) -> bool:
        """End the request from another thread. Returns whether it had not ended."""
        if self.is_over:
            return False
        try:
            self._loop.call_soon_threadsafe(self.whole.cancel)
        except RuntimeError:  # the loop is closed, so nobody waits
            self.is_over = True
        return True

    def settle(self) -> None:
        """Hand the results or the error to the coroutine, in the loop."""
        if self.whole.done():
            return  # cancelled meanwhile
        if self._error is None:
            self.whole.set_result(self._results)
        else:
            self.whole.set_exception(self._error)

    def _was_cancelled(self, whole: "asyncio.Future[list[Any]]") -> None:
        if not self.is_over:
            self.is_over = True
            self._taken_back(self)


class Part:
    """Receive the result of one sample of a request, by the methods that a `concurrent.futures.Future` has."""

    __slots__ = ("_is_done", "_place", "_request")

    def __init__(self, request: Request, place: int) -> None:
        self._request, self._place, self._is_done = request, place, False

    def done(self) -> bool:
        """Return whether there is a result or an exception, or none is wanted any more."""
        return self._is_done or self._request.is_over

    def cancelled(self) -> bool:
        """Return whether no result is wanted: the request was cancelled, or another sample of it has failed."""
        return not self._is_done and self._request.is_over

    def cancel(self) -> bool:
        """Report that no result is wanted any more: the whole request is cancelled."""
        return self._request.cancel()

    def set_running_or_notify_cancel(self) -> bool:
        return not self._request.is_over

    def set_result(self, result: Any) -> None:
        self._is_done = True
        self._request.put(self._place, result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._is_done = True
        self._request.fail(exception)


Answer = Future[Any] | Part
"""Receives the result of a sample."""
