"""Run the child processes of a search: fresh ones, or forks of a process that has imported what trials need."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from whet.machine import describe
from whet.measure.allocator import steady
from whet.measure.fork_server import ForkServer
from whet.measure.isolate import QUIET, Arguments, Function, Outcome, run_isolated
from whet.tuner.budget import Runner

# Every trial imports these. Runtimes are not among them: some patch torch when they are imported, and a recipe may use
# none of them.
_OF_MODELS = ("whet.tuner.target_examination", "whet.tuner.trial")
_OF_TRAININGS = tuple(f"whet.tuner.training.{name}" for name in ("examination", "trial", "steps_process"))
_FORKED = (*_OF_MODELS, *_OF_TRAININGS)
_FORKS_EACH = 4  # of a training, whose finals are forks too: two rounds of them have another server than the next two


def isolated(
    memory_limit_bytes: int | None, server: ForkServer | None = None, *, malloc: Mapping[str, str] | None = None
) -> Runner:
    """Return a runner of child processes under a memory limit.

    Args:
        memory_limit_bytes: The most memory that a process may take.
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
def forking(memory_limit_bytes: int | None, *, is_training: bool = False) -> Iterator[Runner]:
    """Yield a runner whose trials are forks of one process that has imported what they need.

    That saves each trial two to five seconds. Fresh processes are used where forks are unsafe: on systems other than
    Linux, and beside a GPU, whose driver fails after a fork if an imported module has asked it for devices.

    Args:
        memory_limit_bytes: The most memory that a process may take.
        is_training: Whether a training is tuned. All its processes are forks, with the user's own malloc: how it keeps
            memory is one of the techniques.
    """
    malloc = {} if is_training else steady()
    if sys.platform != "linux" or describe().gpu:
        yield isolated(memory_limit_bytes, malloc=malloc)
        return
    preload = _OF_TRAININGS if is_training else (*_OF_MODELS, "torch.export._trace")
    forks_each = _FORKS_EACH if is_training else None
    with ForkServer(preload, {**QUIET, **malloc}, forks_each=forks_each) as server:
        yield isolated(memory_limit_bytes, server, malloc=malloc)
