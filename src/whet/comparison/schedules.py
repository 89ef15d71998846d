"""Decide in which order sides are measured, so that slow drifts of the machine affect all variants alike."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from whet.comparison.run import Run, Side
from whet.measure.quiet import QuietWait

Pair = tuple[Side, Side]
"""The old variant and the new one."""

Together = Callable[[Side, Side, int], tuple[Run, Run]]
"""A function that measures two sides at the same time; the number, 0 or 1, says which of them begins."""


class Schedule(Protocol):
    """Define an order of measurements."""

    def round(
        self, number: int, pairs: Sequence[Pair], alone: Sequence[Side], patience: QuietWait
    ) -> Iterator[dict[str, Run]]:
        """Measure one round: every pair once.

        A run that a busy machine disturbed is measured again as long as `patience` lasts.

        Args:
            number: The round's number, from 0 on.
            pairs: The pairs to measure. Several pairs may have the same old side.
            alone: Sides to measure beside those of the pairs.
            patience: How long to wait for a quiet machine.

        Yields:
            The runs by the names of their sides, as soon as they belong together.
        """


@dataclass(frozen=True)
class Rounds:
    """Measure each side once in each round, in a process of its own, in random order. Pairs may share a side."""

    seed: int = 0

    def round(
        self, number: int, pairs: Sequence[Pair], alone: Sequence[Side], patience: QuietWait
    ) -> Iterator[dict[str, Run]]:
        """Measure every side once; see Schedule."""
        sides = {side.name: side for pair in pairs for side in pair} | {side.name: side for side in alone}
        names = random.Random(f"{self.seed}, round {number}").sample(sorted(sides), len(sides))
        yield {name: measured(sides[name], patience) for name in names}


@dataclass(frozen=True)
class ABBA:
    """Measure each pair by itself, the old side first in every other round, so that a steady drift cancels out."""

    def round(
        self, number: int, pairs: Sequence[Pair], alone: Sequence[Side], patience: QuietWait
    ) -> Iterator[dict[str, Run]]:
        """Measure each pair, one process after the other; see Schedule. After a failure the other side is left out."""
        for pair in pairs:
            runs: dict[str, Run] = {}
            for side in reversed(pair) if number % 2 else pair:
                runs[side.name] = measured(side, patience)
                if runs[side.name].failure:
                    break
            yield runs
        for side in alone:
            yield {side.name: measured(side, patience)}


@dataclass(frozen=True)
class Turns:
    """Measure each pair in two processes that live at the same time and take turns, block by block.

    By `seed`, the side that begins is drawn for every second round; in the round after it, the other side begins.
    """

    together: Together
    seed: int = 0

    def round(
        self, number: int, pairs: Sequence[Pair], alone: Sequence[Side], patience: QuietWait
    ) -> Iterator[dict[str, Run]]:
        """Measure each pair; see Schedule. No pair is begun once the patience has run out."""
        drawn = random.Random(f"{self.seed}, rounds {number // 2}").randrange(2)
        first = drawn if number % 2 == 0 else 1 - drawn
        for old, new in pairs:
            if patience.has_run_out:
                return
            old_run, new_run = patience.measure(
                lambda old=old, new=new: self.together(old, new, first),  # type: ignore[misc]
                lambda runs: runs[0].busy or runs[1].busy,
            )
            yield {old.name: old_run, new.name: new_run}


def measured(side: Side, patience: QuietWait) -> Run:
    """Measure a side in a process of its own, and again after waiting where other processes disturbed it."""
    return patience.measure(side.run, lambda run: run.busy)
