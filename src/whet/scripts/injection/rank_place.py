"""Give each process of a script a directory for its messages: one of its own where a launcher started several.

What a launcher tells its processes in their environment is torchrun's: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, and GROUP_WORLD_SIZE, the number of machines. accelerate launch uses torchrun, or starts one process
without them.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from whet.scripts.injection.messages import PROBLEM, TRAINER

REFUSED = 2  # the exit code
_OTHERS_S = 5.0  # in which the other processes of this machine should refuse too
_POLL_S = 0.02
_RANKS = "rank-*"


@dataclass(frozen=True)
class RankPlace:
    """Say where a process writes its messages, and which of its launcher's processes it is.

    Attributes:
        num_local: The processes on this machine.
    """

    directory: Path
    is_launched: bool = False
    rank: int = 0
    world_size: int = 1
    num_local: int = 1
    num_machines: int = 1

    @classmethod
    def of_environment(cls, messages: Path, *, is_launched: bool) -> "RankPlace":
        """Return this process's place below the directory of a run's messages, and make its directory."""
        if not is_launched:
            return cls(messages)
        local = os.environ.get("LOCAL_RANK", "0")
        rank, world_size, num_local, num_machines = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1), ("GROUP_WORLD_SIZE", 1))
        )
        directory = messages / _RANKS.replace("*", local)
        directory.mkdir(exist_ok=True)
        return cls(directory, is_launched, rank, world_size, num_local, num_machines)

    @property
    def in_processes(self) -> str:
        """Return " in N processes" where there are several, and "" otherwise."""
        return f" in {self.world_size} processes" if self.world_size > 1 else ""

    def refuse(self, why: str) -> int:
        """Leave the reason why nothing is trained here, and return the exit code for this process.

        A launcher on one machine is not told of a failure, which it would report at length: whet ends it, and says why.
        """
        (self.directory / PROBLEM).write_text(why, encoding="utf-8")
        if not self.is_launched:
            return REFUSED
        began = time.monotonic()  # a process that ends while others need its answer would make them fail otherwise
        while time.monotonic() - began < _OTHERS_S and self._num_refused() < self.num_local:
            time.sleep(_POLL_S)
        return 0 if self.num_machines == 1 else REFUSED

    def _num_refused(self) -> int:
        return sum(1 for _ in self.directory.parent.glob(f"{_RANKS}/{PROBLEM}"))


def problem_of(messages: Path) -> str:
    """Return why a run's processes refused to train: what the first of them said; "" where none did."""
    found = sorted([*messages.glob(PROBLEM), *messages.glob(f"{_RANKS}/{PROBLEM}")])
    return found[0].read_text(encoding="utf-8") if found else ""


def has_trained(messages: Path) -> bool:
    """Return whether a process of a run found a loop to train."""
    return (messages / TRAINER).exists() or any(messages.glob(f"{_RANKS}/{TRAINER}"))
