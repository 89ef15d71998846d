"""Say what each of the processes that compute a model together is given: cores, threads, and the first message."""

import mmap
import os
from dataclasses import asdict, dataclass
from typing import Any

from whet.models.decoder.share import Share
from whet.models.hybrid.native_share import StepBounds
from whet.models.options import ServingOptions


@dataclass(frozen=True)
class Given:
    """Hold what a process needs to load its share.

    Attributes:
        memory: The file descriptor of the memory that all processes share.
        cores: The cores that the process runs on.
    """

    directory: str
    options: ServingOptions
    share: Share
    bounds: StepBounds
    memory: int
    cores: tuple[int, ...]
    num_threads: int

    def as_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Given":
        return cls(
            message["directory"],
            ServingOptions(**message["options"]),
            Share(**message["share"]),
            StepBounds(*message["bounds"]),
            message["memory"],
            tuple(message["cores"]),
            message["num_threads"],
        )


def cores_of(share: Share, cores: frozenset[int]) -> tuple[int, ...]:
    """Return a process's part of the cores. Where there are fewer cores than processes, several share one."""
    ordered = sorted(cores)
    if len(ordered) < share.num_ranks:
        return (ordered[share.rank % len(ordered)],)
    return tuple(ordered[share.of(len(ordered))])


def threads_of(share: Share, num_threads: int) -> int:
    """Return how many of a model's threads each process has."""
    return max(1, num_threads // share.num_ranks)


def mapped(memory: int, num_bytes: int) -> mmap.mmap:
    """Map the memory that the processes share. The descriptor may be closed afterwards."""
    return mmap.mmap(memory, num_bytes, flags=mmap.MAP_SHARED)


def bind_thread(cores: tuple[int, ...]) -> None:
    """Let the calling thread, and those that it starts later, run on these cores alone, where the system can do so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
