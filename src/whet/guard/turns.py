"""A pair: two processes, one on each side's code, that take turns.

What differs from process to process (addresses, pages, where threads run) is drawn anew for each pair. What drifts
from second to second (other tenants, clock frequency) meets both sides of a pair alike: both processes live at the same
time, and short blocks of calls alternate between them, while the other one waits. Measured in docs/gate.md.
"""

import math
import os
import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from whet.errors import BaselineError
from whet.guard.checkout import Tree
from whet.guard.point import first_batch
from whet.guard.sweep import said
from whet.measure.clock import quiet_collector, time_block, warm_up
from whet.measure.isolate import QUIET, Outcome, run_isolated
from whet.signature import split

NUM_BLOCKS = 10  # of each side
# glibc gives freed memory back to the system, or does not, by where things happen to lie: each call of a model then
# faults its pages in again, or does not, for as long as the process lives. With these it never gives any back.
STEADY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}

_FUNCTION = "whet.guard.turns:measure_in_turns"
_ALONE = "the other side ended before its time"


def measure_pair(
    trees: tuple[Tree, Tree],
    target: str,
    sizes: Mapping[str, int],
    first: int,
    *,
    scratch: Path,
    budget_s: float,
    time_limit_s: float,
) -> tuple[float, float]:
    """Milliseconds per call of a target at a size on each of two trees. first: which of them begins.

    The second's time is the first's by the median ratio of neighbouring blocks. Raises BaselineError, with what the
    process said, where a side gives no time.
    """
    handles = [end.detach() for end in socket.socketpair()]
    outcomes: dict[int, Outcome] = {}

    def run(side: int) -> None:
        tree = trees[side]
        arguments = {"target": target, "sizes": dict(sizes), "budget_s": budget_s, "begins": side == first}
        outcomes[side] = run_isolated(
            _FUNCTION,
            {**arguments, "handle": handles[side]},
            scratch / str(side),
            time_limit_s=time_limit_s,
            environment={**QUIET, **_steady(), **tree.environment},
            working_directory=tree.working_directory if tree.working_directory.is_dir() else tree.root,
            inherit=(handles[side],),
        )

    other = threading.Thread(target=run, args=(1,))
    other.start()
    try:
        run(0)  # in this thread, so that Ctrl-C ends it; the other side then finds itself alone, and ends as well
    finally:
        other.join()
    _raise_failure(outcomes, trees)
    old, new = (outcomes[side].value["blocks_ms"] for side in range(2))  # type: ignore[index]
    old_ms = statistics.geometric_mean(old)
    return old_ms, old_ms * math.exp(statistics.median(math.log(b / a) for a, b in zip(old, new, strict=True)))


def _raise_failure(outcomes: Mapping[int, Outcome], trees: tuple[Tree, Tree]) -> None:
    """Where a side has failed: that of the one that failed first, not of the one that was left alone."""
    failures = [(outcome.failure, trees[side]) for side, outcome in outcomes.items() if outcome.failure is not None]
    for failure, tree in sorted(failures, key=lambda found: found[0].message == _ALONE):
        raise BaselineError(f"in {tree.name}: {said(failure)}")


def _steady() -> dict[str, str]:
    """STEADY, unless the user has set malloc up."""
    is_set = any(name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD") for name in os.environ)
    return {} if is_set else STEADY


def measure_in_turns(
    target: str, sizes: Mapping[str, int], budget_s: float, begins: bool, handle: int
) -> dict[str, list[float]]:
    """One side, in a process of its own: warm up, then time `NUM_BLOCKS` blocks, while the other side waits.

    handle: the file descriptor of a socket whose other end the other side has. Returns milliseconds per call of each
    block. Raises BaselineError where the other side ends.
    """
    with socket.socket(fileno=handle) as line, torch.no_grad():
        turns = _Turns(line, begins)
        with turns.mine():  # two teams of threads on the same cores would wait for each other at every barrier
            calls = [_call(target, sizes)]
            warm_up(calls, budget_s=budget_s)
        blocks = []
        with quiet_collector():
            for _ in range(NUM_BLOCKS):
                with turns.mine():
                    blocks.append(time_block(calls, budget_s=budget_s / NUM_BLOCKS) * 1e3)
        if begins:
            line.recv(1)  # the other one measures its last block: nobody ends meanwhile
        return {"blocks_ms": blocks}


def _call(target: str, sizes: Mapping[str, int]) -> Callable[[], Any]:
    """The target's first batch through its model, after it was seen to work."""
    workload = first_batch(target, sizes).workload
    args, kwargs = split(workload.inputs[0])
    return lambda: workload.model(*args, **kwargs)


class _Turns:
    """One byte goes to and fro; who has it may run."""

    def __init__(self, line: socket.socket, begins: bool) -> None:
        self._line = line
        self._has_it = begins

    @contextmanager
    def mine(self) -> Iterator[None]:
        try:
            if not self._has_it and not self._line.recv(1):
                raise BaselineError(_ALONE)
            self._has_it = False
            yield
            self._line.sendall(b".")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BaselineError(_ALONE) from error
