"""End a run between two steps where a signal asks for it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Remember the number of the signal that has asked a run to end; None so far."""

    SIGNALS = _SIGNALS

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def name(self) -> str:
        """Return the signal's name; "" where none has come."""
        return "" if self.number is None else signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """Return 128 plus the signal's number, as shells count; 0 where none has come."""
        return 0 if self.number is None else 128 + self.number


@contextmanager
def stopping() -> Iterator[Stop]:
    """Have signals end the run after the step that it is in. A second signal ends it at once.

    Call this in the main thread: Python allows no other to handle signals.
    """
    stop = Stop()
    before = {int(number): signal.getsignal(number) for number in _SIGNALS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # as under nohup

    def handle(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(number, before[number] if before[number] is not None else signal.SIG_DFL)

    for known in before:
        signal.signal(known, handle)
    try:
        yield stop
    finally:
        for known, handler in before.items():
            signal.signal(known, handler if handler is not None else signal.SIG_DFL)
