"""Take steps from torch, for any training loop in this process: their times, phases, and the size of the batches.

This module loads torch. The samples of a batch are the first dimension of its first tensor, and its tokens are the
elements of its `input_ids`.
"""

from collections import deque
from collections.abc import Callable, Mapping

import torch

from whet.profiling.step.log import StepRecord
from whet.profiling.step.watch import watch_everything

OnStep = Callable[[StepRecord, int | None, int | None], None]

HOST_PHASES = "phases are the host's time: work on the GPU runs later, and shows up where the host waits for it"

_MOST_BATCHES = 4096  # in one step, with gradient accumulation
_TOKEN_KEYS = ("input_ids", "decoder_input_ids")


class TorchLoop:
    """Call `on_step(step, num_samples, num_tokens)` at the end of every step, until `stop`."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._sizes: deque[tuple[int | None, int | None]] = deque(maxlen=_MOST_BATCHES)
        self._watching = watch_everything(self._record, on_batch=self._count, with_memory=False)
        self._watching.__enter__()

    def stop(self) -> None:
        """Restore torch, but for wrappers that others have added meanwhile. A complete last step is still reported."""
        self._watching.__exit__(None, None, None)

    def _count(self, batch: object) -> None:
        self._sizes.append(size_of(batch))

    def _record(self, step: StepRecord) -> None:
        # Earlier batches belong to no step, as those of a validation.
        if step.num_batches == 1:
            num_samples, num_tokens = self._sizes[-1]
        else:
            sizes = list(self._sizes)[-step.num_batches :] if step.num_batches else []
            num_samples = _total([samples for samples, _ in sizes])
            num_tokens = _total([tokens for _, tokens in sizes])
        self._sizes.clear()
        self._on_step(step, num_samples, num_tokens)


def size_of(batch: object) -> tuple[int | None, int | None]:
    """Return the number of samples and of tokens in a batch. Each is None if the batch does not show it."""
    if isinstance(batch, list | tuple | torch.Tensor) or not isinstance(batch, Mapping):
        return _num_samples(batch), None
    named = next((batch[key] for key in _TOKEN_KEYS if isinstance(batch.get(key), torch.Tensor)), None)
    return _num_samples(batch), named.numel() if named is not None else None


def _num_samples(batch: object) -> int | None:
    """Return the first dimension of the first tensor that has one."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, list | tuple):
        for part in batch:
            if (size := _num_samples(part)) is not None:
                return size
        return None
    return _num_samples(list(batch.values())) if isinstance(batch, Mapping) else None


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
