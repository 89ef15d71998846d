"""Recognise what starts a script in several processes: torchrun and accelerate launch. Nothing heavy is imported."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from whet.errors import RanksError, TargetError

_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_FIRST_S = 10.0  # in which the first process says why all end; a launcher ends the others once one of them has ended
_OUT_OF_REACH = frozenset("colossalai composer deepspeed horovodrun mpiexec mpirun srun".split())
_OTHER_STARTS = ("__mpirun_hostfile", "__tpu", "__use_deepspeed", "__use_megatron_lm")  # of accelerate, - as _


def launcher_length(words: Sequence[str]) -> int:
    """Return how many words at the beginning of a command name its launcher: 0 where Python starts the script itself.

    Examples are torchrun (1), accelerate launch (2), and python -m torch.distributed.run (3).
    """
    program = Path(words[0]).name if words else ""
    if program in ("torchrun", "accelerate-launch"):
        return 1
    if program == "accelerate" and "launch" in words[1:2]:
        return 2
    if not program.startswith("python"):
        return 0
    place = next((i for i, word in enumerate(words) if word == "-m" or word.endswith(".py")), len(words))
    names_launcher = any(word in _MODULES for word in words[place + 1 : place + 2])
    return place + 2 if names_launcher and words[place] == "-m" else 0


def check_reach(words: Sequence[str]) -> None:
    """Check that whet reaches the processes that a command starts: they inherit what it puts into the environment.

    Args:
        words: The command, up to its script.

    Raises:
        TargetError: They may be on other machines, or a launcher starts them otherwise.
    """
    program = Path(words[0]).name if words else ""
    option = next((word for word in words if word.partition("=")[0].replace("-", "_") in _OTHER_STARTS), "")
    if program in _OUT_OF_REACH or (option and launcher_length(words)):
        raise TargetError(
            f"whet does not reach the processes that {program}{f' {option}' if option else ''} starts; start the "
            "script by torchrun, once on each machine, as whet run --recipe R -- torchrun OPTIONS train.py ARGUMENTS; "
            "or use whet.prepare in its loop"
        )


def check_started_once() -> None:
    """Check that this process was not started by a launcher, as one of several that would all do the same.

    Raises:
        RanksError: It was. The first of the processes tells people.
    """
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if rank.isdigit() and size.isdigit() and int(size) > 1:
        if int(rank) > 0:
            time.sleep(_FIRST_S)
        raise RanksError(
            f"this whet is one of {size} that a launcher started, as RANK and WORLD_SIZE say; start it once, with the "
            f"launcher in its command, as whet run --recipe R -- torchrun --nproc-per-node {size} train.py ARGUMENTS",
            is_told=int(rank) > 0,
        )
