"""A thread of its own for work that other threads ask for: an inbox under a lock, a start, an end, and failures."""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Work = TypeVar("Work")
Work_co = TypeVar("Work_co", covariant=True)

_LONGEST_SLEEP_S = 3600.0


class Inbox(Protocol[Work_co]):
    """Collects what other threads ask for. The worker calls it under its lock, and so must everyone else."""

    def due_s(self) -> float | None:
        """Return when the next work is due, by the worker's clock; None while there is none."""

    def take(self, now_s: float, *, everything: bool = False) -> Work_co:
        """Remove and return what is due.

        Args:
            now_s: The worker's time.
            everything: Also take what is not due yet, as the worker is ending.
        """


class Worker(Generic[Work]):
    """Runs one thread that takes work from an inbox as it falls due, until it is stopped.

    Whoever changes the inbox holds `changed`, and notifies it if the work may be due earlier than before. The owner
    may guard its own state with `changed` too; the lock can be taken again by the thread that holds it.
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
        """Make the worker. Its thread begins with `start`.

        Args:
            name: The thread's name.
            inbox: Where the work comes from.
            work: Does the work that was taken, on the thread and without the lock. It is called a last time, maybe
                with nothing to do, after `stop`.
            failed: Called on the thread with what `work` raised. The thread goes on.
            clock: The time by which work falls due, in seconds.
        """
        self.changed = threading.Condition()
        self.is_stopping = False
        self._inbox, self._work, self._failed, self._clock = inbox, work, failed, clock
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread after one last call of `work` with everything in the inbox.

        Args:
            wait: Return when the thread has ended. On the thread itself, this returns at once.
        """
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        if wait and threading.current_thread() is not self._thread:
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
            except Exception as error:  # noqa: BLE001 - nobody may wait for ever, whatever is wrong in here
                self._failed(error)

    def _wait_s(self) -> float:
        due_s = self._inbox.due_s()
        return _LONGEST_SLEEP_S if due_s is None else min(due_s - self._clock(), _LONGEST_SLEEP_S)
