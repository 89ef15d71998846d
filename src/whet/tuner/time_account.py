"""Keep account of a search's time: the seconds that each of its parts takes."""

import contextlib
from collections.abc import Callable, Iterator

EXAMINATION, TRIALS, FINALS, LOSSES, BATCHES = "examination", "trials", "finals", "loss proof", "larger batches"


class TimeAccount:
    """Add up the seconds of each part, as `clock` tells, in the order in which the parts began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of a block as time of a part."""
        began = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - began


def time_sentence(seconds: dict[str, float], compile_s: float = 0.0) -> str:
    """Return where a search's time went, in a sentence, or ""; `compile_s` went into techniques and compiling."""
    told = [
        f"{value:.0f} s {name}" + (f" ({compile_s:.0f} s of it compiling)" if name == TRIALS and compile_s >= 1 else "")
        for name, value in seconds.items()
        if value >= 0.5
    ]
    return f"Time: {', '.join(told)}." if told else ""
