"""Find what a loop allocates in step after step and never frees, by the line that allocates it.

Growth alone is no evidence, because batches of unequal size show it too. The evidence is the step in which the
surviving allocations were made. A clean loop holds allocations of its first step (optimiser state), of one step (the
best model), or of the last few (a queue, the loop's own variables). A leak leaves survivors from steps all along the
run.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from whet.measure.source_location import Line
from whet.profiling.model.allocations import Allocation

LEAST_STEPS = 5
_MANY = 6  # survivors from so many different steps, spread over the run, suffice for a run of any length
_LEAST_BYTES = 256  # per step: fewer bytes are numbers kept for a log, and no leak


@dataclass(frozen=True)
class Leak:
    """Describe memory that one line allocates and the loop keeps.

    Attributes:
        what: A tensor's dtype and shape, or another description of what grows.
        bytes_per_step: The mean over the steps that were examined.
        steps: How many of the examined steps left something behind.
        num_steps: How many steps were examined.
        held_by: What holds a survivor, in words; "" if unknown.
        keeps_graph: Whether a survivor also keeps its autograd graph alive.
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
    """Hold what one line left alive, from all steps but the first and the last."""

    line: Line
    allocations: tuple[Allocation, ...]
    steps: frozenset[int]

    @property
    def num_bytes(self) -> int:
        return sum(a.num_bytes for a in self.allocations)


def surviving_allocations(alive: Sequence[Allocation], num_steps: int) -> list[SurvivingAllocations]:
    """Find the lines whose allocations, alive at a run's end, are from steps all along it, most bytes first.

    The list is empty if the run has fewer than five steps, which are too few to tell.
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
    """Return whether survivors of these steps show that every part of the run leaves some behind.

    There must be survivors from half of the steps, at most six and at least three, and from each third of the run.
    """
    window = range(1, num_steps - 1)
    enough = max(3, min(_MANY, len(window) / 2))
    third = len(window) / 3
    parts = {min(2, int((step - window.start) / third)) for step in steps if step in window}
    return len([step for step in steps if step in window]) >= enough and len(parts) == 3


def is_significant(surviving: SurvivingAllocations, num_steps: int, *, keeps_graph: bool) -> bool:
    """Return whether survivors matter: they keep an autograd graph, or they are 256 bytes a step or more."""
    return keeps_graph or surviving.num_bytes / max(1, num_steps - 2) >= _LEAST_BYTES


def leak_of(surviving: SurvivingAllocations, num_steps: int, *, held_by: str = "", keeps_graph: bool = False) -> Leak:
    """Describe surviving allocations as a leak, by their most frequent dtype and shape."""
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
