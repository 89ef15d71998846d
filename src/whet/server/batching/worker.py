"""Run work that other threads ask for in a thread of its own, with an inbox under a lock."""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Work = TypeVar("Work")
Work_co = TypeVar("Work_co", covariant=True)

_LONGEST_SLEEP_S = 3600.0


class Inbox(Protocol[Work_co]):
    """Collect what other threads ask for. The worker calls it under its lock, and so must all other callers."""

    def due_s(self) -> float | None:
        """Return when the next work is due, in seconds of the worker's clock, or None while there is none."""

    def take(self, now_s: float, *, everything: bool = False) -> Work_co:
        """Remove and return the work that is due at `now_s`, in seconds of the worker's clock.

        With `everything`, also take work that is not due yet, since the worker ends.
        """


class Worker(Generic[Work]):
    """Run one thread that takes work from an inbox when it is due, from `start` until it is stopped.

    Hold `changed` to change the inbox, and notify it if work may now be due earlier than before. The owner may also
    guard its own state with `changed`. A thread that holds the lock can take it again.

    Args:
        work: Does the work that was taken, on the thread and without the lock. It is called a last time after `stop`,
            maybe with no work.
        failed: Called on the thread with an exception that `work` raised. The thread continues.
    """

    def __init__(
        self,
        name: str,
        inbox: Inbox[Work],
        work: Callable[[Work], None],
        *,
        failed: Callable[[Exception], None],
        clock: Callable[[], float],
    ) -> None:
        self.changed = threading.Condition()
        self.is_stopping = False
        self._inbox, self._work, self._failed, self._clock = inbox, work, failed, clock
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Return whether the worker's own thread asks."""
        return threading.current_thread() is self._thread

    def stop(self, *, wait: bool = True) -> None:
        """End the thread after one last call of `work` with everything in the inbox.

        With `wait`, wait until the thread has ended. A call from the thread itself never waits.
        """
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        if wait and not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self.changed:
                while not self.is_stopping and (wait_s := self._wait_s()) > 0:
                    self.changed.wait(wait_s)
                is_last = self.is_stopping
                work = self._inbox.take(self._clock(), everything=is_last)
            try:
                self._work(work)
            except Exception as error:  # noqa: BLE001 - if the thread ended, its callers would wait for ever
                self._failed(error)

    def _wait_s(self) -> float:
        due_s = self._inbox.due_s()
        return _LONGEST_SLEEP_S if due_s is None else min(due_s - self._clock(), _LONGEST_SLEEP_S)
