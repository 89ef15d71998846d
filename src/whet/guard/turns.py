"""A pair: two processes, one on each side's code, that take turns.

What differs from process to process (addresses, pages, where threads run) is drawn anew for each pair. What drifts
from second to second (clock frequency, a little load) meets both sides of a pair alike: both processes live at the same
time, and short blocks of calls alternate between them, while the other one waits. More load than that does not meet
both alike, so blocks during which other processes held the cores are measured again. Measured in docs/gate.md.
"""

import math
import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from whet.errors import BaselineError
from whet.guard.checkout import Tree
from whet.guard.point import first_batch
from whet.guard.sweep import said
from whet.measure.allocator import steady
from whet.measure.clock import quiet_collector, time_block, warm_up
from whet.measure.clocks import Clocks
from whet.measure.isolate import QUIET, Outcome, run_isolated
from whet.measure.load import NO_LOAD, Load, cause_of, meter, quiet_blocks, total
from whet.signature import split

NUM_BLOCKS = 10  # quiet ones of each side
_ENOUGH_BLOCKS = 5  # quiet ones that a pair needs to count
_PATIENCE = 3  # times as many blocks, where some are disturbed
_QUIET, _DISTURBED = b"+", b"-"

_FUNCTION = "whet.guard.turns:measure_in_turns"
_ALONE = "the other side ended before its time"


@dataclass(frozen=True)
class PairTimes:
    """Milliseconds per call on the old and on the new side of one pair of processes.

    Attributes:
        load: What the machine did beside all blocks of both sides.
        cause: What disturbed the pair, where too few of its blocks were quiet; "" for a quiet pair.
    """

    old_ms: float
    new_ms: float
    load: Load = NO_LOAD
    cause: str = ""


def measure_pair(
    trees: tuple[Tree, Tree],
    target: str,
    sizes: Mapping[str, int],
    first: int,
    *,
    scratch: Path,
    budget_s: float,
    time_limit_s: float,
) -> PairTimes:
    """Measure a target at a size on each of two trees, in a pair of processes.

    The new side's time is the old side's by the median ratio of neighbouring blocks. Only blocks that were quiet on
    both sides count, unless too few of them were.

    Args:
        first: Which of the two sides begins, 0 or 1.
        scratch: A directory for the processes' files.
        budget_s: Seconds of timing in each process, if it is quiet.
        time_limit_s: Seconds after which a process is ended.

    Raises:
        BaselineError: A side gives no time. The message holds what its process said.
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
            environment={**QUIET, **steady(), **tree.environment},
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
    old, new = (outcomes[side].value for side in range(2))
    return pair_times(old, new)  # type: ignore[arg-type]


def pair_times(old: Mapping[str, Any], new: Mapping[str, Any]) -> PairTimes:
    """Return the times of a pair from what `measure_in_turns` returned on both sides."""
    loads = [Load(**a) + Load(**b) for a, b in zip(old["loads"], new["loads"], strict=True)]
    quiet = quiet_blocks(loads)
    cause = old["cause"] or new["cause"] if sum(quiet) >= _ENOUGH_BLOCKS else cause_of(loads)
    kept = [
        (a, b) for a, b, is_quiet in zip(old["blocks_ms"], new["blocks_ms"], quiet, strict=True) if is_quiet or cause
    ]
    old_ms = statistics.geometric_mean(a for a, _ in kept)
    ratio = math.exp(statistics.median(math.log(b / a) for a, b in kept))
    return PairTimes(old_ms, old_ms * ratio, total(loads), cause)


def _raise_failure(outcomes: Mapping[int, Outcome], trees: tuple[Tree, Tree]) -> None:
    """Where a side has failed: that of the one that failed first, not of the one that was left alone."""
    failures = [(outcome.failure, trees[side]) for side, outcome in outcomes.items() if outcome.failure is not None]
    for failure, tree in sorted(failures, key=lambda found: found[0].message == _ALONE):
        raise BaselineError(f"in {tree.name}: {said(failure)}")


def measure_in_turns(
    target: str, sizes: Mapping[str, int], budget_s: float, begins: bool, handle: int
) -> dict[str, Any]:
    """Measure one side in a process of its own: warm up, then time blocks, while the other side waits.

    Both sides tell each other after each block whether it was quiet, and go on until `NUM_BLOCKS` pairs of blocks were,
    or three times as many have been measured.

    Args:
        begins: Whether this side has the first turn.
        handle: The file descriptor of a socket whose other end the other side has.

    Returns:
        `blocks_ms`, the milliseconds per call of each block, `loads`, what the machine did beside it, and `cause`, what
        else disturbed this side.

    Raises:
        BaselineError: The other side has ended.
    """
    with socket.socket(fileno=handle) as line, torch.no_grad():
        turns = _Turns(line, begins)
        with turns.mine():  # two teams of threads on the same cores would wait for each other at every barrier
            calls = [_call(target, sizes)]
            warm_up(calls, budget_s=budget_s)
        if begins:
            turns.wait()
        read, clocks, blocks, loads = meter(), Clocks(), list[float](), list[Load]()
        with quiet_collector():
            while not turns.is_enough:
                with turns.mine():
                    before = read()
                    blocks.append(time_block(calls, budget_s=budget_s / NUM_BLOCKS) * 1e3)
                    loads.append(before.until(read()))
                    turns.was_quiet = quiet_blocks(loads)[-1]
                if begins:
                    turns.wait()  # for the other side's half of the pair; nobody ends while the other one measures
        return {"blocks_ms": blocks, "loads": [asdict(load) for load in loads], "cause": clocks.cause()}


def _call(target: str, sizes: Mapping[str, int]) -> Callable[[], Any]:
    """The target's first batch through its model, after it was seen to work."""
    workload = first_batch(target, sizes).workload
    args, kwargs = split(workload.inputs[0])
    return lambda: workload.model(*args, **kwargs)


class _Turns:
    """One byte goes to and fro; the side that has it may run. It says whether the block before it was quiet."""

    was_quiet = True  # this side's last block

    def __init__(self, line: socket.socket, begins: bool) -> None:
        self._line = line
        self._has_it = begins
        self._mine: list[bool] = []
        self._theirs: list[bool] = []

    @property
    def is_enough(self) -> bool:
        """Whether enough pairs of blocks are measured. Both sides know the same pairs, so they say the same."""
        pairs = list(zip(self._mine[1:], self._theirs[1:], strict=False))  # the first turn is the warm-up
        return sum(a and b for a, b in pairs) >= NUM_BLOCKS or len(pairs) >= _PATIENCE * NUM_BLOCKS

    def wait(self) -> None:
        """Wait until the other side has had its turn."""
        if not self._has_it:
            try:
                byte = self._line.recv(1)
            except ConnectionResetError:
                byte = b""
            if not byte:
                raise BaselineError(_ALONE)
            self._theirs.append(byte == _QUIET)
            self._has_it = True

    @contextmanager
    def mine(self) -> Iterator[None]:
        self.wait()
        yield
        self._has_it = False
        self._mine.append(self.was_quiet)
        try:
            self._line.sendall(_QUIET if self.was_quiet else _DISTURBED)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BaselineError(_ALONE) from error
