"""Let the processes of a launched run end after the same step: the first of them decides, one step ahead.

Others that train with it cannot be further than its next backward, so they see its file before they end that step.
"""

from whet.files import write_whole
from whet.scripts.injection.rank_place import RankPlace

_END = "end.txt"


class AgreedEnd:
    """Say after each step whether the processes end here. One process alone ends once it has enough."""

    def __init__(self, place: RankPlace) -> None:
        self._is_alone, self._is_first = place.world_size == 1, place.rank == 0
        self._path = place.directory.parent / _END
        self._last_step: int | None = None

    def is_reached(self, step: int, *, has_enough: bool) -> bool:
        """Return whether the process ends after this step, of which the first one counts as 1.

        Args:
            has_enough: Whether the first process has enough steps; the others' does not count.
        """
        if self._is_alone:
            return has_enough
        if self._last_step is None and self._is_first and has_enough:
            self._last_step = step + 1
            write_whole(self._path, str(self._last_step))
            return False
        if self._last_step is None and not self._is_first and self._path.exists():
            self._last_step = int(self._path.read_text(encoding="utf-8"))
        return self._last_step is not None and step >= self._last_step
