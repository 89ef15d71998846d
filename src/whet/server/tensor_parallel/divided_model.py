"""Run a decoder for an engine on several processes of this machine, which compute each step together."""

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from whet.errors import OptionError, RanksError
from whet.kernels.build import follow_torch, library
from whet.measure.cores import bind_thread
from whet.models.decoder.share import Share
from whet.models.families import check_divisible, open_share, open_with
from whet.models.hybrid.native_share import StepBounds
from whet.models.options import ServingOptions
from whet.models.step import Allocation, ServedModel, StepBatch, WithoutStates
from whet.server.options import EngineOptions
from whet.server.tensor_parallel.processes import Processes
from whet.server.tensor_parallel.shares import Given, cores_of_ranks, mapped, threads_on

TIMEOUT_S = 60.0  # after which a process that does not answer within a step has failed
_TELL_S = 2.0  # how long it may take until the system says how a process ended


class DividedModel(WithoutStates):
    """Run a model as a ServedModel, on this process and on `num_ranks - 1` others, which live until `close`.

    Each has a share of the weights, and of the keys and values: those of its heads. Where one of them ends or does not
    answer, each step raises RanksError from then on.

    Raises:
        TargetError: The directory holds no model that can be run, or a process failed to load its share.
        OptionError: The model cannot be divided so, or the system has no memory that processes can share.
    """

    def __init__(self, directory: Path | str, options: ServingOptions, num_ranks: int, bounds: StepBounds) -> None:
        check_divisible(directory, options, num_ranks)
        memory = _shared_memory(num_ranks)
        try:
            given = _given(directory, options, num_ranks, bounds, memory)
            self._processes = Processes(given[1:])
            self._end = weakref.finalize(self, self._processes.end)
            try:
                self._mine = open_share(directory, options, given[0].share)
                num_shared = self._mine.shared_bytes(bounds)
                os.ftruncate(memory, num_shared)
                self.weight_bytes = self._mine.weight_bytes + sum(one["loaded"] for one in self._processes.answers())
            except BaseException:
                self._end()
                raise
            self._group = self._mine.join(bounds, mapped(memory, num_shared))
        finally:
            os.close(memory)
        library().set_threads(given[0].num_threads)
        self._timeout_s = bounds.timeout_s
        self._first, self._is_bound = given[0], False
        self.num_ranks = num_ranks
        self.vocab_size, self.max_model_len = self._mine.vocab_size, self._mine.max_model_len
        self.block_size, self.bytes_per_block = self._mine.block_size, num_ranks * self._mine.bytes_per_block
        self.failure: str | None = None  # what happened, once a process has failed
        self._lock = threading.Lock()
        self._listeners: list[Callable[[str], None]] = []

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the other processes, in the order of their ranks."""
        return [self._processes.pid(rank) for rank in range(1, self.num_ranks)]

    @property
    def waited_s(self) -> float:
        """Return how long steps have waited for the other processes, and added what they have."""
        return self._group.waited_s

    def listen(self, on_failure: Callable[[str], None]) -> None:
        """Call `on_failure` once, from any thread, with what happened, where a process ends or does not answer."""
        self._listeners.append(on_failure)
        if self.failure is not None:
            on_failure(self.failure)

    def allocate(self, room: Allocation) -> None:
        self._processes.tell_all({"num_blocks": room.num_blocks, "num_drafts": room.num_drafts})
        self._mine.allocate(room)
        self._processes.answers()
        self._processes.watch(self._ended)

    def step(self, batch: StepBatch) -> Tensor:
        if not self._is_bound:  # the engine's thread, and those that the kernels and torch start from it
            bind_thread(self._first.cores)
            torch.set_num_threads(self._first.num_threads)
            self._is_bound = True
        try:
            return self._mine.step(batch)
        except RanksError:
            assert self._group.failed is not None
            self._fail(self._group.failed)
            raise RanksError(self.failure or "") from None

    def close(self) -> None:
        """End the other processes. No step may run any more. The kernels have as many threads as torch again."""
        self._group.end()
        self._end()
        follow_torch()

    def _ended(self, rank: int) -> None:
        self._group.fail(rank)
        self._fail(rank)

    def _fail(self, rank: int) -> None:
        """Note and tell, once, that a process has failed."""
        how = self._processes.how_ended(rank, _TELL_S) if rank else None
        pid = self._processes.pid(rank) if rank else os.getpid()
        with self._lock:
            if self.failure is not None:
                return
            self.failure = (
                f"rank {rank} of the {self.num_ranks} processes that compute the model together (process {pid}) "
                f"{how or f'has not answered for {self._timeout_s:g} s'}: start whet again"
            )
        for listener in self._listeners:
            listener(self.failure)


def open_on_ranks(directory: Path | str, options: EngineOptions) -> ServedModel:
    """Load a model for an engine on as many processes as its options say. Raises as open_with and DividedModel do."""
    if options.tensor_parallel_size == 1:
        return open_with(directory, options)
    bounds = StepBounds(options.max_batch_tokens, options.max_num_seqs, TIMEOUT_S)
    return DividedModel(directory, options, options.tensor_parallel_size, bounds)


def _given(
    directory: Path | str, options: ServingOptions, num_ranks: int, bounds: StepBounds, memory: int
) -> list[Given]:
    """Return what each of the processes is given, in the order of their ranks."""
    return [
        Given(
            os.fspath(Path(directory).absolute()),
            ServingOptions(options.dtype, options.weights, options.kv, options.max_model_len),
            Share(rank, num_ranks),
            bounds,
            memory,
            cores,
            threads_on(cores, num_ranks, torch.get_num_threads()),
        )
        for rank, cores in enumerate(cores_of_ranks(num_ranks))
    ]


def _shared_memory(num_ranks: int) -> int:
    """Return the descriptor of memory that has no name, so that no other program finds it."""
    if not hasattr(os, "memfd_create"):
        raise OptionError(f"tensor_parallel_size={num_ranks} needs memory that processes share (Linux): leave it out")
    return os.memfd_create("whet-tensor-parallel", os.MFD_CLOEXEC)
