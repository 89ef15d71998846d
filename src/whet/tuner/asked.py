"""Hold what a search is asked for, whatever is tuned."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from whet.measure.machine import describe
from whet.tuner.command import command_line
from whet.tuner.goal import BUDGET_S, Goal
from whet.tuner.preparation import checked_directory
from whet.tuner.study import Study


@dataclass(frozen=True)
class Asked:
    """Hold what a search is asked for. The attributes are those of `whet.tune`.

    Attributes:
        out: The directory for the results; "" for a temporary one.
        storage: The study's URL; "" for a file in the directory.
        workers: "ray" or "ray=ADDRESS" where a cluster's nodes make the trials; "" for this process.
    """

    goal: Goal = field(default_factory=Goal)
    budget_s: float = BUDGET_S
    out: str = ""
    storage: str = ""
    resume: bool = False
    exclude: tuple[str, ...] = ()
    trial_limit_s: float = 300.0
    memory_limit_bytes: int | None = None
    workers: str = ""

    @property
    def is_shared(self) -> bool:
        """Return whether other processes may measure for the same search."""
        return bool(self.storage or self.workers)

    @property
    def limit_bytes(self) -> int:
        """Return the most memory that a process may take."""
        return self.memory_limit_bytes or describe().most_bytes

    def checked_directory(self) -> Path | None:
        """Check everything that can be checked before the work, and return the output directory, if one was given."""
        if self.storage:
            Study.check_storage(self.storage)
        return checked_directory(self.out or None, self.resume, has_own_study=not self.storage)

    def command(self, words: str | Sequence[str], exclude: Sequence[str], **options: str) -> str:
        """Return the command line of the same search, with `words` for what is tuned and options of its kind alone."""
        goal = {k: v for k, v in asdict(self.goal).items() if k not in ("is_default_drop", "limits_slowdown")}
        goal["max_drop"] = None if self.goal.is_default_drop else self.goal.max_drop
        return command_line(
            words,
            **goal,
            budget_s=self.budget_s,
            storage=self.storage or None,
            workers=self.workers or None,
            exclude=exclude,
            more=options,
        )
