"""Show how many of a number of things are done: as a bar on a terminal, and as a few lines where output is piped."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from whet.ui.figures import digits

_FIRST_S, _LONGEST_S = 5.0, 60.0  # the pause before the second line, which doubles after each line, up to the longest


class CountedProgress(Progress):
    """Show a bar that disappears at its end. Where the console is no terminal, print lines at growing distances.

    A line comes when a task begins, 5 s later, 10 s after that, and so on, at last every minute: a long run is never
    silent, and its log stays short.
    """

    def __init__(self, console: Console, *, refresh_per_second: float = 10) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=refresh_per_second,
        )
        self._pause_s = _FIRST_S
        self._began_s = self._next_s = 0.0

    def begin(self, description: str, total: int | None) -> TaskID:
        """Begin a task of so many things; None where nobody knows how many."""
        task_id = self.add_task(description, total=total)
        if not self.console.is_terminal:
            self._began_s = time.monotonic()
            self._next_s = self._began_s + self._pause_s
            self._print(task_id)
        return task_id

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if not self.console.is_terminal and (now := time.monotonic()) >= self._next_s:
            self._pause_s = min(2 * self._pause_s, _LONGEST_S)
            self._next_s = now + self._pause_s
            self._print(task_id, now - self._began_s)

    def _print(self, task_id: TaskID, passed_s: float = 0.0) -> None:
        task = self._tasks[task_id]
        of = "" if task.total is None else f" of {task.total:,.0f}"
        rate = f", {digits(task.completed / passed_s)}/s" if passed_s > 0 else ""
        self.console.print(f"{task.description}: {task.completed:,.0f}{of}{rate}")
