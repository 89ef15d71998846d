"""Give all samples of a request one future. A future for each sample would cost more than everything else."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol


class Answer(Protocol):
    """Receive the result of a sample: a `concurrent.futures.Future`, or a part of a request's."""

    def done(self) -> bool:
        """Return whether there is a result or an exception, or none is wanted any more."""

    def cancelled(self) -> bool:
        """Return whether no result is wanted any more."""

    def cancel(self) -> bool:
        """Report that no result is wanted any more."""

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether a result is still wanted."""

    def set_result(self, result: Any) -> None:
        """Give the result."""

    def set_exception(self, exception: BaseException | None) -> None:
        """Give what went wrong in place of a result."""


class Request:
    """Collect the results of one request's samples.

    Attributes:
        whole: A future of all results, in order. It fails as soon as one sample does. Cancel it to take back every
            sample that has not begun to run.
        parts: Where the result of each sample goes.
    """

    def __init__(self, num_samples: int, taken_back: Callable[[], None]) -> None:
        """Make the parts.

        Args:
            num_samples: How many samples the request has.
            taken_back: Called once where the request fails or is cancelled before its end.
        """
        self.whole: Future[list[Any]] = Future()
        self.parts = [Part(self, place) for place in range(num_samples)]
        self._results: list[Any] = [None] * num_samples
        self._num_left = num_samples
        self._lock = threading.Lock()
        self._taken_back = taken_back
        if not num_samples:
            self.whole.set_result([])
        self.whole.add_done_callback(self._ended)

    def put(self, place: int, result: Any) -> None:
        """Give the result of one sample."""
        with self._lock:
            self._results[place] = result
            self._num_left -= 1
            is_last = not self._num_left
        if is_last:
            with suppress(InvalidStateError):  # cancelled meanwhile
                self.whole.set_result(self._results)

    def fail(self, error: BaseException | None) -> None:
        """Give what went wrong with one sample."""
        with suppress(InvalidStateError):  # another one failed first
            self.whole.set_exception(error)

    def _ended(self, whole: "Future[list[Any]]") -> None:
        if self._num_left:
            self._taken_back()


class Part:
    """Receive the result of one sample of a request."""

    __slots__ = ("_is_done", "_place", "_request")

    def __init__(self, request: Request, place: int) -> None:
        self._request, self._place, self._is_done = request, place, False

    def done(self) -> bool:
        """See Answer."""
        return self._is_done or self._request.whole.done()

    def cancelled(self) -> bool:
        """See Answer: the request was cancelled, or another sample of it has failed."""
        return not self._is_done and self._request.whole.done()

    def cancel(self) -> bool:
        """See Answer: the whole request is cancelled."""
        return self._request.whole.cancel()

    def set_running_or_notify_cancel(self) -> bool:
        """See Answer."""
        return not self._request.whole.done()

    def set_result(self, result: Any) -> None:
        """See Answer."""
        self._is_done = True
        self._request.put(self._place, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """See Answer."""
        self._is_done = True
        self._request.fail(exception)
