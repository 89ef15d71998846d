"""Find the largest batch of a training run that fits into memory: whet.largest_batch.

Each size is tried in a process of its own, since a process that ran out of memory is no longer what it was.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from pydantic import BaseModel

from whet.core.workload import TrainingWorkload
from whet.core.workload.larger_batch import Rule, learning_rate_factor, learning_rate_rule
from whet.core.workload.training import Trainer, num_samples_of, seed_everything
from whet.errors import OptionError, TargetError
from whet.measure.isolate import QUIET, FailureKind, run_isolated
from whet.measure.memory import TakenMemory, begin_peak, cuda_peak_bytes, free_bytes
from whet.parallel.joining import joined
from whet.parallel.started import neighbours, started_together
from whet.ui.figures import num_bytes
from whet.workloads.target import open_any

_NUM_STEPS = 3  # the first one allocates gradients and the optimiser's state
_PRECISION = 16  # the search ends within a sixteenth
_SEARCH_S = 24 * 3600.0  # which processes wait for each other
_BARE_BYTES = 2**30  # what a process holds before the model is built, at most


class BatchProbe(BaseModel, frozen=True):
    """Tell a process which batch to try: so many samples, or None to read the target's own batch and make no step."""

    target: str
    batch: int | None = None


class ProbedBatch(BaseModel, frozen=True):
    """Hold what a batch of one size needed.

    Attributes:
        num_samples: Samples in the first batch.
        peak_bytes: The most memory of a step above what the process held before the model was built; 0 where no step
            was made.
        free_bytes: The GPU's free memory before the model was built; None on a CPU.
        optimizer: The optimiser's class.
        reason: Why the batch does not fit; "" where it was trained on.
    """

    num_samples: int = 0
    peak_bytes: int = 0
    free_bytes: int | None = None
    optimizer: str = ""
    reason: str = ""


class LargestBatch(BaseModel, frozen=True):
    """Hold the largest batch that fits, and every size that was tried.

    A larger batch is another training: compare it with the original after equal numbers of samples, not of steps.

    Attributes:
        batch: Samples in the largest batch that fits.
        own_batch: Samples in the target's own batch.
        peak_bytes: What a step on the largest batch needs.
        max_bytes: What it may need.
        optimizer: The optimiser's class.
        probes: Every size that was tried, with what it needed or why it does not fit.
    """

    batch: int
    own_batch: int
    peak_bytes: int
    max_bytes: int
    optimizer: str
    probes: dict[int, ProbedBatch]

    @property
    def rule(self) -> Rule:
        """Return the customary rule for the learning rate of a larger batch."""
        return learning_rate_rule(self.optimizer)

    def learning_rate_factor(self, rule: Rule | None = None) -> float:
        """Return what to multiply the learning rate with for the largest batch.

        Args:
            rule: "linear" or "sqrt"; the optimiser's customary one, if not given.
        """
        return learning_rate_factor(self.batch / self.own_batch, rule or self.rule)


def largest_batch(
    target: str,
    *,
    max_memory_bytes: int | None = None,
    share: float = 0.8,
    most: int = 65_536,
    time_limit_s: float = 300.0,
) -> LargestBatch:
    """Find the largest batch that a training run can make steps on, within a sixteenth.

    Of the processes that torchrun started, each looks on its own device, and all return the least that they found.

    Args:
        target: "FILE.py:FUNCTION" or "package.module:FUNCTION"; the function has a parameter `batch` with a default.
        max_memory_bytes: What a step may need above what the process held before the model was built.
        share: Without max_memory_bytes, the share of the free memory that a step may need.
        most: The largest batch to try.
        time_limit_s: Seconds after which a size counts as one that does not fit.

    Raises:
        OptionError: A value is out of its range.
        TargetError: The function takes no `batch`, or not even a batch of one sample fits.
        WhetError: A step fails for another reason than memory; the message says why.
    """
    if not 0 < share <= 1 or most < 1 or (max_memory_bytes is not None and max_memory_bytes < 1):
        raise OptionError("share must be above 0 and at most 1; most and max_memory_bytes must be 1 or more")
    if started_together():
        with joined(timeout_s=_SEARCH_S) as ranks:
            search = partial(_largest, target, max_memory_bytes, share / neighbours(), most, time_limit_s)
            found: LargestBatch = ranks.all_succeed("the largest batch", search)
            least = min(ranks.gather("the largest batch of each", found.batch))
            return found.model_copy(update={"batch": least})
    return _largest(target, max_memory_bytes, share, most, time_limit_s)


def _largest(target: str, max_memory_bytes: int | None, share: float, most: int, time_limit_s: float) -> LargestBatch:
    """Search on this process's device; see largest_batch."""
    free = free_bytes()
    allowed = max_memory_bytes or int(share * free)
    with tempfile.TemporaryDirectory(prefix="whet-batch-") as scratch:
        own = _probe(BatchProbe(target=target), Path(scratch) / "own", free, time_limit_s)
        if own.reason:
            raise TargetError(f"the target's own batch cannot be read: {own.reason}")
        if own.free_bytes is not None and max_memory_bytes is None:
            allowed = int(share * own.free_bytes)
        kill_bytes = free if own.free_bytes is not None else min(allowed + _BARE_BYTES, free)
        probes: dict[int, ProbedBatch] = {}

        def fits(batch: int) -> bool:
            probe = BatchProbe(target=target, batch=batch)
            found = _probe(probe, Path(scratch) / str(batch), kill_bytes, time_limit_s)
            probes[batch] = _judged(found, batch, allowed)
            return not probes[batch].reason

        best = largest_that_fits(fits, min(own.num_samples, most), most)
    if not best:
        raise TargetError(f"not even a batch of one sample fits into {num_bytes(allowed)}: {probes[1].reason}")
    return LargestBatch(
        batch=best,
        own_batch=own.num_samples,
        peak_bytes=probes[best].peak_bytes,
        max_bytes=allowed,
        optimizer=probes[best].optimizer,
        probes=probes,
    )


def largest_that_fits(fits: Callable[[int], bool], first: int, most: int) -> int:
    """Return the largest size that fits, within a sixteenth of it; 0 where none does.

    Args:
        fits: Returns whether a size fits. A size below one that fits must fit as well.
        first: The size to begin with, 1 or more.
    """
    low, high, size = 0, most + 1, first
    while high - low > max(1, low // _PRECISION):
        if fits(size):
            low = size
        else:
            high = size
        size = min(2 * low, most) if high > most else (low + high) // 2
    return low


def probe_batch(probe: BatchProbe) -> ProbedBatch:
    """Make a few steps on batches of a size, and say what they needed.

    Raises:
        TargetError: The target is no training run.
    """
    seed_everything(0)
    sizes = {} if probe.batch is None else {"batch": probe.batch}
    taken = TakenMemory()
    free = int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None
    workload = open_any(probe.target, sizes)
    if not isinstance(workload, TrainingWorkload):
        raise TargetError(f"{probe.target} is a {type(workload).__name__}; here whet takes a TrainingWorkload")
    try:
        trainer = Trainer(workload, keeps_losses=False)
        num_samples = num_samples_of(next(iter(trainer.first_batches(1)), None))
        if probe.batch is None:
            on_gpu = next(workload.model.parameters()).is_cuda
            return ProbedBatch(num_samples=num_samples, free_bytes=free if on_gpu else None)
        begin_peak()
        for _ in range(_NUM_STEPS):
            trainer.step()
    except (MemoryError, torch.OutOfMemoryError) as error:
        return ProbedBatch(reason=f"it ran out of memory: {error}")
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # as PyTorch's allocator on CPUs says it
            raise
        return ProbedBatch(reason=f"it ran out of memory: {error}")
    gpu_bytes = cuda_peak_bytes()
    return ProbedBatch(
        num_samples=num_samples,
        peak_bytes=taken.peak_bytes() if gpu_bytes is None else gpu_bytes,
        free_bytes=None if gpu_bytes is None else free,
        optimizer=type(trainer.optimizer).__name__,
    )


def _probe(probe: BatchProbe, directory: Path, kill_bytes: int, time_limit_s: float) -> ProbedBatch:
    """Try a batch in a process of its own.

    Raises:
        WhetError: It failed for another reason than memory or time.
    """
    directory.mkdir()
    outcome = run_isolated(
        probe_batch,
        probe,
        directory,
        time_limit_s=time_limit_s,
        memory_limit_bytes=kill_bytes,
        environment=QUIET,
    )
    found = outcome.answer(ProbedBatch)
    if found is not None:
        return found
    assert outcome.failure is not None
    if outcome.failure.kind in (FailureKind.MEMORY, FailureKind.TIMEOUT):
        return ProbedBatch(reason=outcome.failure.message)
    raise outcome.failure.as_error()


def _judged(found: ProbedBatch, batch: int, allowed: int) -> ProbedBatch:
    """Return a probe with the reason why its batch does not count as one that fits."""
    if found.reason:
        return found
    if found.num_samples != batch:
        why = f"the data gave a batch of {found.num_samples} samples"
    elif found.peak_bytes > allowed:
        why = f"a step needs {num_bytes(found.peak_bytes)}, and {num_bytes(allowed)} is allowed"
    else:
        return found
    return found.model_copy(update={"reason": why})
