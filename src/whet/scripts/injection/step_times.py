"""Keep the times of a script's steps, and what other processes did beside blocks of them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from whet.measure.load import Load, cause_of, meter, quiet_blocks

NUM_WARM_UP = 3  # steps of each process that fill caches and start workers
_LEAST_STEPS = 7
_BLOCK_S = 0.1  # between two readings of the load, which take less than a thousandth of it
_ENOUGH_S = 5.0  # slow steps need no large number: their times scatter less
_ENOUGH = 0.5  # of a process's steps have to be quiet


class StepTimes:
    """Note each step, and say when there are enough.

    Enough are `num_steps`, or seven after `enough_s` seconds, or any number after `limit_s` seconds.

    Attributes:
        blocks: How many steps each block has, and the load beside them.
    """

    def __init__(self, num_steps: int, limit_s: float, *, enough_s: float = _ENOUGH_S) -> None:
        self.seconds: list[float] = []
        self.blocks: list[tuple[int, Load]] = []
        self._read = meter()
        self._reading = self._read()
        self._num_steps = num_steps
        self._enough_s = enough_s
        self._ends = time.monotonic() + limit_s
        self._began = 0.0

    def add(self, seconds: float) -> bool:
        """Note a step that has ended, and return whether there are enough."""
        self.seconds.append(seconds)
        now = time.monotonic()
        is_over = self._is_over(now)
        if is_over or time.perf_counter() - self._reading.at_s >= _BLOCK_S:
            self.end_block()
        return is_over

    def end_block(self) -> None:
        """Note the load beside the steps since the last reading."""
        reading = self._read()
        num_before = sum(num for num, _ in self.blocks)
        if len(self.seconds) > num_before:
            self.blocks.append((len(self.seconds) - num_before, self._reading.until(reading)))
        self._reading = reading

    def blocks_to_json(self) -> list[dict[str, Any]]:
        return [{"num_steps": num, "load": asdict(load)} for num, load in self.blocks]

    def _is_over(self, now: float) -> bool:
        self._began = self._began or now
        is_enough = len(self.seconds) >= _LEAST_STEPS and now - self._began > self._enough_s
        return len(self.seconds) >= self._num_steps or is_enough or now > self._ends


def quiet_steps(seconds: Sequence[float], blocks: Sequence[Mapping[str, Any]]) -> tuple[Sequence[float], str]:
    """Return the seconds of the steps that count, and what disturbed too many of them ("" for nothing).

    `blocks` is what `StepTimes.blocks_to_json` returned.
    """
    loads = [Load(**block["load"]) for block in blocks]
    flags = [
        is_quiet for block, is_quiet in zip(blocks, quiet_blocks(loads), strict=True) for _ in range(block["num_steps"])
    ]
    flags += [True] * (len(seconds) - len(flags))
    warm = list(zip(seconds, flags, strict=True))[NUM_WARM_UP:] or [(seconds[-1], flags[-1])]
    quiet = [step_s for step_s, is_quiet in warm if is_quiet]
    if len(quiet) >= _ENOUGH * len(warm):
        return quiet, ""
    return [step_s for step_s, _ in warm], cause_of(loads)
