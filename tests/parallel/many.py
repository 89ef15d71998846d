"""Call a function on several processes that meet as those of torchrun do, each forked from one that imported torch."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE

_PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "whet.parallel.pipeline.pipeline_trainer",
    "whet.trainer.train",
    "tokenizers",
]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_PRELOADED)
_MOST_S = 150.0


def on_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """Return what function(ranks, *args) returned on each process, in the order of ranks.

    Args:
        function: A function of a module that the tests' folders hold, since the processes import it by name.

    Raises:
        AssertionError: One of them raised; its traceback is the message.
    """
    with Group(function, world_size, *args, timeout_s=timeout_s) as group:
        answers = group.answers()
    faults = [f"rank {rank}: {fault}" for rank, (fault, _) in enumerate(answers) if fault]
    assert not faults, "\n".join(faults)
    return [found for _, found in answers]


class Group:
    """Processes that call a function together. A context manager, which ends those that are left.

    Without `timeout_s`, the function joins the others itself, and is called without ranks.
    """

    def __init__(
        self, function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float | None = None
    ) -> None:
        self._place = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(world_size):
            mine, theirs = _FORKS.Pipe(duplex=False)
            variables = {
                RANK: str(rank),
                WORLD_SIZE: str(world_size),
                RENDEZVOUS: f"file://{Path(self._place.name) / 'meeting'}",
                "GOMP_SPINCOUNT": "0",
            }
            process = _FORKS.Process(target=_called, args=(theirs, variables, timeout_s, function, args), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)  # type: ignore[arg-type]
            self.processes.append(process)

    def answers(self, most_s: float = _MOST_S) -> list[tuple[str, Any]]:
        """Return each process's traceback, or "" and what it returned, each within some seconds of the one before."""
        answers: dict[int, tuple[str, Any]] = {}
        while len(answers) < len(self._pipes):
            ready = wait([pipe for rank, pipe in enumerate(self._pipes) if rank not in answers], most_s)
            assert ready, f"only ranks {sorted(answers)} gave an answer"
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = (f"rank {rank} ended without an answer", None)
        return [answers[rank] for rank in sorted(answers)]

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.join(10)
            process.kill()
            process.join()
        self._place.cleanup()


def _called(pipe: Connection, variables: dict[str, str], timeout_s: float | None, function: Any, args: Any) -> None:
    os.environ.update(variables)
    import torch

    from whet.parallel.joining import joined

    torch.set_num_threads(1)
    try:
        if timeout_s is None:
            found = function(*args)
        else:
            with joined(timeout_s=timeout_s) as ranks:
                found = function(ranks, *args)
        pipe.send(("", found))
    except BaseException:  # noqa: BLE001 - the test shows it
        pipe.send((traceback.format_exc(), None))
    finally:
        pipe.close()
