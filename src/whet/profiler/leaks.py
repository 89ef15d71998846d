"""What a loop allocates in step after step and never frees, by the line that allocates it.

Not growth alone is looked at, which batches of unequal size show too, but when the survivors were made: what a clean
loop holds at its end comes from its first step (optimiser state), from one step (a best model kept) or from the last
few (a queue, the loop's own variables). What leaks has survivors from steps all along the run.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from whet.measure.source_location import Line
from whet.profiler.allocations import Allocation

LEAST_STEPS = 5
_MANY = 6  # survivors of so many different steps, spread over the run, are enough, however long the run
_LEAST_BYTES = 256  # a step: numbers kept for a log are no leak


@dataclass(frozen=True)
class Leak:
    """Memory that one line allocates and the loop keeps.

    what: a tensor's dtype and shape, or what else grows. steps: how many of the steps looked at left something behind.
    held_by: where a survivor is kept, in words, or "". bytes_per_step: over the steps looked at.
    """

    line: Line
    what: str
    bytes_per_step: float
    num_kept: int
    kept_bytes: int
    steps: int
    num_steps: int
    held_by: str = ""
    keeps_graph: bool = False

    @property
    def sentence(self) -> str:
        kept = f"{self.what} from {self.steps} of {self.num_steps} steps"
        held = f", held by {self.held_by or 'an autograd graph, or C++ code'}"
        graph = "; it keeps its autograd graph: append x.detach() or x.item()" if self.keeps_graph else ""
        return f"{self.line} leaves {kept} alive{held}{graph}"


@dataclass(frozen=True)
class SurvivingAllocations:
    """What one line left alive, from the steps that are looked at: all but the first and the last."""

    line: Line
    allocations: tuple[Allocation, ...]
    steps: frozenset[int]

    @property
    def num_bytes(self) -> int:
        return sum(a.num_bytes for a in self.allocations)


def surviving_allocations(alive: Sequence[Allocation], num_steps: int) -> list[SurvivingAllocations]:
    """The lines whose allocations survive from steps all along a run of `num_steps` steps; most bytes first.

    alive: what lives at the end of it. None with fewer than five steps: nothing could be told.
    """
    if num_steps < LEAST_STEPS:
        return []
    by_line: dict[Line, list[Allocation]] = defaultdict(list)
    for allocation in alive:
        if 1 <= allocation.step <= num_steps - 2:
            by_line[allocation.line].append(allocation)
    found = []
    for line, allocations in by_line.items():
        steps = frozenset(a.step for a in allocations)
        if is_spread(steps, num_steps):
            found.append(SurvivingAllocations(line, tuple(allocations), steps))
    return sorted(found, key=lambda s: -s.num_bytes)


def is_spread(steps: frozenset[int], num_steps: int) -> bool:
    """Whether survivors of these steps show that every part of the run leaves some behind.

    Enough different steps (half of them, six at the most, three at the least), and some in each third of the run.
    """
    window = range(1, num_steps - 1)
    enough = max(3, min(_MANY, len(window) / 2))
    third = len(window) / 3
    parts = {min(2, int((step - window.start) / third)) for step in steps if step in window}
    return len([step for step in steps if step in window]) >= enough and len(parts) == 3


def is_significant(surviving: SurvivingAllocations, num_steps: int, *, keeps_graph: bool) -> bool:
    """A few bytes a step are a log, unless each keeps the graph that it comes from."""
    return keeps_graph or surviving.num_bytes / max(1, num_steps - 2) >= _LEAST_BYTES


def leak_of(surviving: SurvivingAllocations, num_steps: int, *, held_by: str = "", keeps_graph: bool = False) -> Leak:
    """As it is reported, with its most frequent shape."""
    shapes: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
    for a in surviving.allocations:
        shapes[a.dtype, a.shape] += 1
    dtype, shape = max(shapes, key=lambda s: shapes[s])
    looked_at = num_steps - 2
    return Leak(
        line=surviving.line,
        what=f"{dtype}{list(shape)}" + (" and others" if len(shapes) > 1 else ""),
        bytes_per_step=surviving.num_bytes / looked_at,
        num_kept=len(surviving.allocations),
        kept_bytes=surviving.num_bytes,
        steps=len(surviving.steps),
        num_steps=looked_at,
        held_by=held_by,
        keeps_graph=keeps_graph,
    )
