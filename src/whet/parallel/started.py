"""Tell from the environment whether this process is one of several that were started together, and which one."""

import os

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def started_together() -> bool:
    """Return whether this process is one of several: of torchrun's or something like it, or of whet's own."""
    by_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1 and all(name in os.environ for name in _VARIABLES)
    return by_torchrun or int(os.environ.get(WORLD_SIZE, "1")) > 1


def speaks() -> bool:
    """Return whether this process tells people what comes of all."""
    return not started_together() or place()[0] == 0


def neighbours() -> int:
    """Return how many of the processes share this one's machine, itself included."""
    by_torchrun = os.environ.get("LOCAL_WORLD_SIZE")
    return int(by_torchrun) if by_torchrun is not None else int(os.environ.get(WORLD_SIZE, "1"))


def restart_count() -> int:
    """Return how many times torchrun has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def place() -> tuple[int, int, int, str]:
    """Return the rank, the world size, the rank on this machine, and where the processes meet, as init methods say."""
    if RENDEZVOUS in os.environ:
        rank = int(os.environ[RANK])
        return rank, int(os.environ[WORLD_SIZE]), rank, os.environ[RENDEZVOUS]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return rank, size, int(os.environ.get("LOCAL_RANK", "0")), "env://"
