"""Steps of whatever training loop runs in this process, taken from torch: times, phases, and the size of the batches.

Loads torch. Samples are the first dimension of a DataLoader's batch, tokens the elements of its `input_ids`.
"""

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from whet.steps.log import StepRecord
from whet.steps.watch import watch_everything

OnStep = Callable[[float, dict[str, float], int | None, int | None], None]

HOST_PHASES = "phases are the host's time: what it starts on the GPU runs later, and shows where the host waits for it"

_MOST_BATCHES = 4096  # of one step, with gradient accumulation
_NEXT = "__next__"
_TOKEN_KEYS = ("input_ids", "decoder_input_ids")


class TorchLoop:
    """Calls on_step(latency_s, phases_s, num_samples, num_tokens) at the end of every step, until `stop`."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._sizes: deque[tuple[int | None, int | None]] = deque(maxlen=_MOST_BATCHES)
        self._next: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
        self._counting = self._count_batches(self._next)
        setattr(_BaseDataLoaderIter, _NEXT, self._counting)
        self._watching = watch_everything(self._record, with_memory=False)
        self._watching.__enter__()

    def stop(self) -> None:
        """Leave torch as it was; what was put over it meanwhile stays. A last step that is done is still told."""
        self._watching.__exit__(None, None, None)
        if _BaseDataLoaderIter.__next__ is self._counting:
            setattr(_BaseDataLoaderIter, _NEXT, self._next)

    def _record(self, record: StepRecord) -> None:
        phases_s = {name.replace(" ", "_"): seconds for name, seconds in record.phases_s().items()}
        # The batches before this step's are of steps that torch_loop was not told of, as the first one.
        sizes = list(self._sizes)[-record.num_batches :] if record.num_batches else []
        self._sizes.clear()
        num_samples = _total([samples for samples, _ in sizes])
        num_tokens = _total([tokens for _, tokens in sizes])
        self._on_step(record.seconds, phases_s, num_samples, num_tokens)

    def _count_batches(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(call)
        def next_batch(iterator: Any) -> Any:
            try:
                batch = call(iterator)
            except StopIteration:
                self._sizes.clear()  # an epoch's last step is over by now; these were of a validation
                raise
            self._sizes.append(size_of(batch))
            return batch

        return next_batch


def size_of(batch: object) -> tuple[int | None, int | None]:
    """Samples and tokens of a batch; None for what it does not say."""
    num_tokens = None
    if isinstance(batch, Mapping):
        named = next((batch[key] for key in _TOKEN_KEYS if isinstance(batch.get(key), torch.Tensor)), None)
        num_tokens = named.numel() if named is not None else None
    return _num_samples(batch), num_tokens


def _num_samples(batch: object) -> int | None:
    """The first dimension of the first tensor that has one."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for part in parts if (size := _num_samples(part)) is not None), None)


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
