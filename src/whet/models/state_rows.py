"""Keep states of fixed size as Python objects, a row a sequence, for models in PyTorch that an engine runs.

A row holds the state at the sequence's settled position, and the states after each draft beyond it. So going back over
drafts takes one of these, and costs the memory of a state for each draft. Models with kernels keep less.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from whet.models.step import Allocation

State = TypeVar("State")


class StateRows(Generic[State]):
    """Hold rows of states. A state must not be changed once it is given: rows share it with their copies.

    Args:
        room: How many rows there are.
        new: Returns the state before the first token.
    """

    def __init__(self, room: Allocation, new: Callable[[], State]) -> None:
        self._new = new
        self._settled = [0] * (room.num_states + room.num_snapshots)
        self._states: list[list[State]] = [
            [] for _ in self._settled
        ]  # after the settled position, after one draft, ...

    def before(self, row: int, position: int) -> State:
        """Return the state of a row's sequence before the token at this position. 0 begins a sequence.

        Raises:
            ValueError: The row has no state there: it lies before what is settled, or after what has been read.
        """
        if position == 0:
            return self._new()
        back = position - self._settled[row]
        if not 0 <= back < len(self._states[row]):
            raise ValueError(f"row {row} holds no state before position {position}")
        return self._states[row][back]

    def keep(self, row: int, begin: int, after: dict[int, State], settled: int) -> None:
        """Keep what a step has read of a row's sequence.

        Args:
            row: The row.
            begin: The position of the step's first token.
            after: The states before the positions that follow `begin`, by position: those from `settled` on.
            settled: The sequence's settled_len.
        """
        before = [] if begin == 0 else self._states[row][: begin - self._settled[row] + 1]
        found = {self._settled[row] + i: state for i, state in enumerate(before)} | after
        self._settled[row] = settled
        self._states[row] = [found[position] for position in range(settled, max(found) + 1)]

    def copy(self, source: int, target: int) -> None:
        """Copy the settled state of a row to another one."""
        self._settled[target], self._states[target] = self._settled[source], self._states[source][:1]
