"""Run the child processes of a search: fresh ones, or forks of a process that has imported what trials need."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from whet.measure.allocator import steady
from whet.measure.fork_server import ForkServer
from whet.measure.group import run_together
from whet.measure.isolate import QUIET, Arguments, FailureKind, Function, Job, Outcome, run_isolated
from whet.measure.machine import describe
from whet.tuner.budget import Runner

# What the forks of a search call, and their server imports. Runtimes are not among these modules: some patch torch when
# they are imported, and a recipe may use none of them.
_OF_MODELS = ("whet.tuner.target_examination", "whet.tuner.trial")
_OF_TRAININGS = tuple(f"whet.tuner.training.{name}" for name in ("examination", "trial", "steps_process"))
_FORKED = (*_OF_MODELS, *_OF_TRAININGS)
# Of several processes that fail, the first of these says why; the others fail since that one is gone.
_BLAMED = (
    FailureKind.MEMORY,
    FailureKind.CRASH,
    FailureKind.USER,
    FailureKind.ERROR,
    FailureKind.TIMEOUT,
    FailureKind.PEER,
)


def isolated(
    memory_limit_bytes: int | None, server: ForkServer | None = None, *, malloc: Mapping[str, str] | None = None
) -> Runner:
    """Return a runner of child processes under a memory limit.

    Args:
        server: Trials are forks of it, if there is one.
        malloc: The environment that sets malloc up; `steady`, if not given.
    """
    set_up = steady() if malloc is None else malloc

    def run(function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
        return run_isolated(
            function,
            arguments,
            directory,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            environment={**QUIET, **set_up},
            start=server.start if server is not None and function.__module__ in _FORKED else None,
        )

    return run


@contextlib.contextmanager
def forking(memory_limit_bytes: int | None) -> Iterator[Runner]:
    """Yield a runner whose trials are forks of one process that has imported what they need.

    That saves each trial seconds. Fresh processes are used where forks are unsafe; see `_may_fork`.
    """
    if not _may_fork():
        yield isolated(memory_limit_bytes)
        return
    with ForkServer((*_OF_MODELS, "torch.export._trace"), {**QUIET, **steady()}) as server:
        yield isolated(memory_limit_bytes, server)


class TrainingProcesses(NamedTuple):
    """Hold the processes of a search for a training.

    Attributes:
        renew: Lets the children that follow have another layout of addresses and other hashes than those before.
        are_forks: Whether a child starts at once, and only the first one after `renew` waits for imports.
    """

    run: Runner
    renew: Callable[[], None] = lambda: None
    are_forks: bool = False


@contextlib.contextmanager
def shared_processes(number: int, num_threads: int, memory_limit_bytes: int | None) -> Iterator["SharedProcesses"]:
    """Yield so many processes that call a function together; they are forks, where forks are safe."""
    own = {**QUIET, "OMP_NUM_THREADS": str(num_threads)}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ForkServer(_OF_TRAININGS, own)) for _ in range(number if _may_fork() else 0)]
        yield SharedProcesses(number, memory_limit_bytes, own, servers)


@dataclass(frozen=True)
class SharedProcesses:
    """Call functions in several processes together, each with its part of the memory.

    Attributes:
        servers: What each process is a fork of; none where each is a fresh one.
    """

    number: int
    memory_limit_bytes: int | None
    environment: Mapping[str, str]
    servers: Sequence[ForkServer] = ()

    def run(self, function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
        """Return what the first process returns, or the failure that ended all of them."""
        limit = self.memory_limit_bytes
        outcomes = run_together(
            [Job(function, arguments, directory / f"rank-{rank}", self.environment) for rank in range(self.number)],
            time_limit_s=time_limit_s,
            memory_limit_bytes=None if limit is None else limit // self.number,
            starts=[server.start for server in self.servers],
        )
        failed = [(rank, one.failure) for rank, one in enumerate(outcomes) if one.failure is not None]
        if not failed:
            return outcomes[0]
        rank, failure = min(failed, key=lambda one: _BLAMED.index(one[1].kind))
        if rank and failure.kind is not FailureKind.USER:  # which says itself where it was raised
            failure = replace(failure, message=f"rank {rank}: {failure.message}")
        return replace(outcomes[rank], value=None, failure=failure)

    def renew(self) -> None:
        for server in self.servers:
            server.renew()


@contextlib.contextmanager
def training_processes(memory_limit_bytes: int | None) -> Iterator[TrainingProcesses]:
    """Yield processes that are forks, where forks are safe, also those of the finals.

    They have the user's own malloc: how it keeps memory is one of the techniques.
    """
    if not _may_fork():
        yield TrainingProcesses(isolated(memory_limit_bytes, malloc={}))
        return
    with ForkServer(_OF_TRAININGS, QUIET) as server:
        yield TrainingProcesses(isolated(memory_limit_bytes, server, malloc={}), server.renew, are_forks=True)


def _may_fork() -> bool:
    """Return whether forks are safe: on Linux, but not beside a GPU.

    After a fork, a GPU's driver fails if an imported module has asked it for devices.
    """
    return sys.platform == "linux" and not describe().gpu
