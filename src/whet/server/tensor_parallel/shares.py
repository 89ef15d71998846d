"""Say what each of the processes that compute a model together is given: cores, threads, and the first message."""

import mmap
from dataclasses import asdict, dataclass
from typing import Any

from whet.measure.cores import allowed_cores, core_shares
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


def cores_of_ranks(num_ranks: int) -> list[tuple[int, ...]]:
    """Divide this thread's cores among so many processes. Where there are fewer cores, several processes share one."""
    cores = sorted(allowed_cores())
    if len(cores) < num_ranks:
        return [(cores[rank % len(cores)],) for rank in range(num_ranks)]
    return core_shares(num_ranks, cores)


def threads_on(cores: tuple[int, ...], num_ranks: int, num_threads: int) -> int:
    """Return the number of a model's threads that a process has on its cores, which is at most one on each core."""
    return max(1, min(num_threads // num_ranks, len(cores)))


def mapped(memory: int, num_bytes: int) -> mmap.mmap:
    """Map the memory that the processes share. The descriptor may be closed afterwards."""
    return mmap.mmap(memory, num_bytes, flags=mmap.MAP_SHARED)
