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
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "whet.parallel.pipeline.pipeline_trainer",
    "hypothesis",
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
    with tempfile.TemporaryDirectory() as place:
        pipes, processes = [], []
        for rank in range(world_size):
            mine, theirs = _FORKS.Pipe(duplex=False)
            variables = {
                RANK: str(rank),
                WORLD_SIZE: str(world_size),
                RENDEZVOUS: f"file://{Path(place) / 'meeting'}",
                "GOMP_SPINCOUNT": "0",
            }
            process = _FORKS.Process(target=_called, args=(theirs, variables, timeout_s, function, args), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return _answers(pipes)
        finally:
            for process in processes:
                process.join(10)
                process.kill()
                process.join()


def _answers(pipes: list[Connection]) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(pipes):
        left = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(left, _MOST_S)
        assert ready, f"ranks {[rank for rank in range(len(pipes)) if rank not in answers]} gave no answer"
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                answers[rank] = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                answers[rank] = (f"rank {rank} ended without an answer", None)
    faults = [f"rank {rank}: {answers[rank][0]}" for rank in sorted(answers) if answers[rank][0]]
    assert not faults, "\n".join(faults)
    return [answers[rank][1] for rank in sorted(answers)]


def _called(pipe: Connection, variables: dict[str, str], timeout_s: float, function: Any, args: Any) -> None:
    os.environ.update(variables)
    import torch

    from whet.parallel.ranks import joined

    torch.set_num_threads(1)
    try:
        with joined(timeout_s=timeout_s) as ranks:
            found = function(ranks, *args)
        pipe.send(("", found))
    except BaseException:  # noqa: BLE001 - the test shows it
        pipe.send((traceback.format_exc(), None))
    finally:
        pipe.close()
