"""Turn each kind of workload into something that can be timed."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.core.signature import output_tensors, split
from whet.core.workload.examination import examine
from whet.core.workload.generation import GenerationWorkload
from whet.core.workload.inference import InferenceWorkload
from whet.core.workload.stream import StreamWorkload
from whet.core.workload.training import Trainer, TrainingWorkload
from whet.errors import TargetError
from whet.measure.evidence import Evidence, Losses, Outputs
from whet.measure.measurable import Measurable

AnyWorkload = InferenceWorkload | TrainingWorkload | GenerationWorkload | StreamWorkload

_WARM_UP_FRAMES = 8  # they also fill a rolling batch
_FRAMES_OF_EVIDENCE = 64
_MOST_FRAMES = 256
_WARM_UP_STEPS = 3  # they fill caches, start workers and allocate the optimiser's state


class ModelCalls:
    """Call a model, or any variant of it, with one batch after another and without gradients.

    Args:
        calls: One call for each batch. Each returns what the model returns.
        num_samples: Samples in a batch, on average.
    """

    is_sequence = False

    def __init__(self, calls: Sequence[Callable[[], Any]], num_samples: float = 1.0) -> None:
        self.calls = list(calls)
        self.num_samples = num_samples
        self.num_kinds = len(self.calls)
        self._turns = itertools.cycle(self.calls)

    def measuring(self) -> AbstractContextManager[object]:
        return torch.no_grad()

    def warm_up(self) -> None:
        for call in self.calls:
            call()

    def once(self) -> None:
        next(self._turns)()

    def evidence(self, folder: Path) -> Evidence | None:
        with torch.no_grad():
            # The outputs are copied, since a model may return the same memory in each call.
            outputs = [tuple(y.detach().cpu().clone() for y in output_tensors(call())) for call in self.calls]
        return Outputs.write(outputs, folder / "outputs.safetensors")


class TrainingSteps:
    """Make the optimiser steps of a training run, one after the other, beginning from its seed."""

    num_kinds = 1
    is_sequence = True

    def __init__(self, workload: TrainingWorkload, trainer: Trainer | None = None, *, num_steps: int = 1) -> None:
        """Begin a training run, or go on with a trainer's. A call is `num_steps` optimiser steps."""
        self._trainer = trainer or Trainer(workload)
        self._workload = workload
        self._num_steps = num_steps

    @property
    def num_samples(self) -> float:
        """Return the samples of a call; 0 before the first step, where the workload does not say."""
        return float(self._trainer.num_samples * self._workload.num_accumulated * self._num_steps)

    def measuring(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def warm_up(self) -> None:
        for _ in range(_WARM_UP_STEPS):
            self.step()

    def once(self) -> None:
        for _ in range(self._num_steps):
            self.step()

    def step(self) -> None:
        self._trainer.step()

    def evidence(self, folder: Path) -> Evidence | None:
        """Return the loss of each step so far, the first ones included."""
        return Losses(by_step=tuple(float(loss) for loss in self._trainer.losses))


class StreamFrames:
    """Turn the frames of a stream, one after the other and again from the first, without gradients.

    The workload's first 256 frames are held in memory, so that no call includes reading one.

    Raises:
        TargetError: It has no frames, or they are no tensors [C, H, W].
    """

    is_sequence = False
    num_kinds = 1
    num_samples = 1.0

    def __init__(self, workload: StreamWorkload) -> None:
        self._workload = workload
        self._frames = list(itertools.islice(workload.frames, _MOST_FRAMES))
        if not self._frames or not all(isinstance(frame, Tensor) and frame.ndim == 3 for frame in self._frames):
            raise TargetError(f"the frames of {workload.name} must be tensors [C, H, W], at least one")
        self._step = workload.open()
        self._turns = itertools.cycle(self._frames)

    def measuring(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def warm_up(self) -> None:
        for _ in range(_WARM_UP_FRAMES):
            self.once()

    def once(self) -> None:
        self._step(next(self._turns))

    def evidence(self, folder: Path) -> Evidence | None:
        """Return what a stream that is opened anew makes of the first frames, in their order."""
        step = self._workload.open()
        with torch.inference_mode():
            # A rolling batch returns None at first. A step may return the same memory in each call.
            answers = map(step, self._frames[:_FRAMES_OF_EVIDENCE])
            outputs = [(answer.detach().cpu().clone(),) for answer in answers if answer is not None]
        return Outputs.write(outputs, folder / "outputs.safetensors")


def measurable_of(workload: AnyWorkload) -> Measurable:
    """Build something that can be timed from a workload.

    Raises:
        TargetError: The workload is of a kind that whet cannot time by itself, or its model cannot be called.
        InputsError: The inputs don't fit the model.
        ModelError: The model raises an error, or gives different outputs for the same inputs.
    """
    match workload:
        case InferenceWorkload():
            examine(workload, with_quality=False, with_behaviour=False)
            batches = [split(batch) for batch in workload.inputs]
            calls = [partial(workload.model, *args, **kwargs) for args, kwargs in batches]
            return ModelCalls(calls, workload.samples_per_batch)
        case TrainingWorkload():
            return TrainingSteps(workload)
        case StreamWorkload():
            return StreamFrames(workload)
    raise TargetError(f"{workload.name} is a {type(workload).__name__}, which whet cannot compare")
