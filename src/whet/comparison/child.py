"""Build and time one variant in a process of a comparison, alone or in turns with another variant."""

import contextlib
import itertools
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whet.comparison.run import Run
from whet.errors import MachineError
from whet.measure.clock import Block, by_number, no_collection, time_block, time_measurable, warm_up
from whet.measure.clocks import Clocks
from whet.measure.exchange import function_at
from whet.measure.load import Load, meter, quiet_blocks, total
from whet.measure.measurable import Measurable
from whet.measure.memory import cuda_peak_bytes, live_tensor_bytes, peak_rss_bytes

NUM_BLOCKS = 10  # quiet ones of each side of a pair
PATIENCE = 3  # times as many blocks are measured at the most, where some are disturbed
ALONE = "the other side ended before its time"

_QUIET, _DISTURBED = b"+", b"-"


class Request(BaseModel, frozen=True):
    """Tell a process what to build and to measure.

    Attributes:
        build: The address of the function that builds a Measurable.
        budget_s: Seconds of quiet timing.
        evidence: A directory for evidence; None where none is wanted.
    """

    build: str
    arguments: dict[str, Any]
    budget_s: float
    evidence: str | None = None

    def built(self) -> Measurable:
        measurable: Measurable = function_at(self.build)(**self.arguments)
        return measurable


class TurnRequest(Request, frozen=True):
    """Tell one side of a pair that takes turns what to build and to measure, and whether it has the first turn.

    `handle` is the file descriptor of a socket that connects this side with the other one.
    """

    begins: bool
    handle: int


def measure_alone(request: Request) -> Run:
    """Build a variant and time it, with nothing else at work in this process."""
    return run_alone(request.built(), request.budget_s, request.evidence)


def run_alone(measurable: Measurable, budget_s: float, evidence: str | None = None) -> Run:
    """Time something that was built in this process; see measure_alone."""
    measurement = time_measurable(measurable, budget_s=budget_s)
    run = Run(
        seconds=measurement.latency_ms / 1e3,
        p90_s=measurement.p90_ms / 1e3,
        num_calls=len(measurement.samples_s),
        calls_s=dict(zip(measurement.numbers, measurement.samples_s, strict=True)) if measurable.is_sequence else {},
        num_samples=measurable.num_samples,
        load=measurement.load,
        busy=measurement.cause,
        peak_bytes=peak_rss_bytes(),
        live_tensor_bytes=live_tensor_bytes(),
        cuda_peak_bytes=cuda_peak_bytes(),
    )
    return _with_evidence(run, measurable, evidence)


def measure_in_turns(request: TurnRequest) -> Run:
    """Build one side of a pair, warm up, then time blocks, while the other side waits.

    Both sides tell each other after each block whether it was quiet, and go on until `NUM_BLOCKS` pairs of blocks were,
    or three times as many have been measured. The Run holds the times and the load of each block.

    Raises:
        MachineError: The other side has ended.
    """
    budget_s, begins = request.budget_s, request.begins
    with socket.socket(fileno=request.handle) as line:
        turns = _Turns(line, begins)
        with turns.mine():  # two teams of threads on the same cores would wait for each other at every barrier
            measurable = request.built()
            calls = [measurable.once] * measurable.num_kinds
            with measurable.measuring():
                measurable.warm_up()
                if not measurable.is_sequence:
                    warm_up(calls, budget_s=budget_s)
            _check_is_alone()
        if begins:
            turns.wait()
        read, clocks, blocks, loads = meter(), Clocks(), list[Block](), list[Load]()
        with no_collection(), measurable.measuring():
            while not turns.is_enough:
                with turns.mine():
                    before = read()
                    blocks.append(time_block(calls, budget_s=budget_s / NUM_BLOCKS))
                    loads.append(before.until(read()))
                    turns.was_quiet = quiet_blocks(loads)[-1]
                if begins:
                    turns.wait()  # for the other side's half of the pair; nobody ends while the other one measures
        run = Run(
            blocks_s=tuple(block.seconds for block in blocks),
            calls_s=_quiet_calls(blocks, loads) if measurable.is_sequence else {},
            loads=tuple(loads),
            load=total(loads),
            busy=clocks.cause(),
            num_samples=measurable.num_samples,
            peak_bytes=peak_rss_bytes(),
            live_tensor_bytes=live_tensor_bytes(),
            cuda_peak_bytes=cuda_peak_bytes(),
        )
        turns.wait()
        run = _with_evidence(run, measurable, request.evidence)
        turns.end()
    return run


def _quiet_calls(blocks: Sequence[Block], loads: Sequence[Load]) -> dict[int, float]:
    """Return the seconds of the calls in quiet blocks by their number, from the first block on.

    A run with fewer quiet blocks than half of `NUM_BLOCKS` counts only where the user wants to go on despite the load.
    Then the calls of all blocks are returned.
    """
    quiet = quiet_blocks(loads)
    kept = [True] * len(quiet) if sum(quiet) < NUM_BLOCKS / 2 else quiet
    ends = itertools.accumulate(block.num_dropped + len(block.samples_s) for block in blocks)
    begins = [end - len(block.samples_s) for end, block in zip(ends, blocks, strict=True)]
    return by_number([block.samples_s for block in blocks], begins, kept)


def _check_is_alone() -> None:
    """Raise MachineError where this side has worker processes: they would work on in the other side's turn."""
    if multiprocessing.active_children():
        raise MachineError(
            "it has worker processes, as a DataLoader with num_workers has, and they work on while the other side is "
            'measured; compare with schedule="abba" or "rounds"'
        )


def _with_evidence(run: Run, measurable: Measurable, directory: str | None) -> Run:
    """Return a run with its evidence, where that is wanted. Its memory was read before: evidence may take more."""
    if directory is None:
        return run
    return run.model_copy(update={"evidence": measurable.evidence(Path(directory))})


class _Turns:
    """Pass one byte to and fro. The side that has it may run. The byte says whether the block before was quiet."""

    was_quiet = True  # this side's last block

    def __init__(self, line: socket.socket, begins: bool) -> None:
        self._line = line
        self._has_it = begins
        self._mine: list[bool] = []
        self._theirs: list[bool] = []

    @property
    def is_enough(self) -> bool:
        """Return whether enough pairs of blocks are measured. Both sides know the same pairs, so they agree."""
        pairs = list(zip(self._mine[1:], self._theirs[1:], strict=False))  # the first turn is the warm-up
        return sum(a and b for a, b in pairs) >= NUM_BLOCKS or len(pairs) >= PATIENCE * NUM_BLOCKS

    def wait(self) -> None:
        """Wait until the other side has had its turn."""
        if not self._has_it:
            try:
                byte = self._line.recv(1)
            except ConnectionResetError:
                byte = b""
            if not byte:
                raise MachineError(ALONE)
            self._theirs.append(byte == _QUIET)
            self._has_it = True

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """Wait for this side's turn, and give the turn to the other side in the end."""
        self.wait()
        yield
        self._has_it = False
        self._mine.append(self.was_quiet)
        try:
            self._line.sendall(_QUIET if self.was_quiet else _DISTURBED)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise MachineError(ALONE) from error

    def end(self) -> None:
        """Give the turn to the other side for the last time. That side may have ended already."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._line.sendall(_QUIET)
