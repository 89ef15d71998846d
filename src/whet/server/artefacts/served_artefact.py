"""Let many clients use one artefact at once. Requests are split into samples, which are run in batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.core.artefact import Artefact
from whet.core.artefact.indices import largest_indices
from whet.errors import RequestError
from whet.server.artefacts.probing import probe
from whet.server.artefacts.tensor_specs import TensorSpec, input_specs, output_names
from whet.server.batching.batcher import DynamicBatcher

MAX_BATCH = 32
MAX_WAITING = 1024

_ENDED_BY_INDICES = ("inductor", "compile")  # whose code ends the process where an index has no row; see indices.py
_RANGES = {
    False: "",
    True: "each call finds the ranges of its int8 numbers in all samples at once (int8_dynamic, or onnxruntime with "
    "mode=dynamic); leave that out of the recipe if requests are to share calls",
    None: "it does not say whether each call finds ranges of int8 numbers; write it again with `whet apply`",
}  # from what a runtime says about ranges to why requests share no calls


class ServedArtefact:
    """Put an artefact behind a dynamic batcher.

    A batch starts as soon as the model is free, with whatever waits by then: nobody waits for others to come.

    Attributes:
        name: What requests call the model.
        outputs: The tensors it returns, in order; see Batching, also for `why_alone` and `batch_size`.
        largest: The largest index that inputs may hold, by place, where it is known.
        run: Runs the model on flat tensors, in one thread at a time: for trying it before it is served.
        infer_samples: Returns the outputs of samples, which have no batch dimension and may have different shapes.
            Cancelled, it takes them back. It raises as `infer`.
        stats: Returns what the batcher has done until now.
        close: Runs what waits, and ends the thread.
    """

    def __init__(
        self,
        name: str,
        artefact: Artefact,
        *,
        max_batch: int = MAX_BATCH,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int | None = None,
    ) -> None:
        """Try the model, and start its thread.

        Raises:
            TargetError: The model takes or returns what the protocol has no type for.
        """
        self.name = name
        self.max_waiting = max_waiting
        self.inputs: tuple[TensorSpec, ...] = input_specs(artefact.signature)
        self.output_names = output_names(artefact.signature)
        self.largest = largest_indices(artefact.manifest.conditions)
        is_safe = artefact.manifest.runtime not in _ENDED_BY_INDICES
        batching = probe(artefact.run, self.inputs, self.output_names, self.largest, tries_indices=is_safe)
        self.outputs, self.batch_size = batching.outputs, batching.batch_size
        self.why_alone = _RANGES[artefact.runtime.ranges_per_call] or batching.why_alone
        self.run = artefact.run
        self._batcher = DynamicBatcher(
            self._run_whole if self.why_alone else self.run,
            max_batch=1 if self.why_alone else batching.batch_size or max_batch,
            batch_sizes=None if self.why_alone else batching.allowed(max_batch),
            max_wait_ms=0,
            max_waiting=max_waiting,
            max_waiting_bytes=max_waiting_bytes,
            retry_alone=True,
            length_dim=None,  # only samples of one shape share a call: padding might change their answers
        )
        self.infer_samples, self.stats, self.close = self._batcher.run_all, self._batcher.stats, self._batcher.close

    def num_places(self, tensors: Sequence[Tensor]) -> int:
        """Return how many samples of the queue a request takes."""
        return 1 if self.why_alone else len(tensors[0])

    async def infer(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs for one request, whose tensors fit `inputs`. Cancelled, it takes its samples back.

        Raises QueueFull where too many samples wait, EngineClosed after `close`, RequestError where the inputs have
        different numbers of samples, and what the model raises.
        """
        if self.why_alone:
            [outputs] = await self._batcher.run_all([tuple(tensors)])
            return list(outputs)
        rows = len(tensors[0])
        if any(len(tensor) != rows for tensor in tensors):
            sizes = ", ".join(f"{spec.name} {len(x)}" for spec, x in zip(self.inputs, tensors, strict=True))
            raise RequestError(f"the inputs have different numbers of samples in their first dimension: {sizes}")
        samples = list(zip(*(tensor.unbind(0) for tensor in tensors), strict=True))
        results = await self.infer_samples(samples)
        if rows == 1:
            return [y[None] for y in results[0]]
        return [torch.stack(outputs) for outputs in zip(*results, strict=True)]

    def _run_whole(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run one request as it came. The batcher has put a dimension in front of it."""
        return tuple(y[None] for y in self.run(*(x[0] for x in tensors)))
