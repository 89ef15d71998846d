"""Describe a model that is called with batches and is to be made fast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from whet.core.signature import Batch, tensors_of
from whet.core.workload.quality import Quality
from whet.core.workload.training import TrainingWorkload
from whet.errors import TargetError, type_name


@dataclass(frozen=True, kw_only=True)
class InferenceWorkload:
    """Describe a model whose calls are to be made fast.

    Attributes:
        model: The model, in eval mode.
        inputs: Batches, on which time is measured in turn. Each is a tensor, a tuple of arguments or a dict of
            arguments by name. An argument is a tensor, a constant (int, float, bool, str, None), or a tuple, list, dict
            or dataclass of arguments. Constants are the same in every batch.
        quality: A held-out score. Without one, a variant is judged by how closely its outputs agree with the original's
            on the calibration batches.
        calibration: Batches that quantisers may look at; the inputs, if not given.
        name: The name shown to people.
        num_samples: Samples in a batch; the first dimension of the first input, if not given.
        training: The training that the model came from, or a function that returns it: techniques that prune train the
            smaller model by it. It trains a model with the same parameters; without one, nothing is pruned.

    Raises:
        TargetError: A field has the wrong type, or there are no inputs.
    """

    model: nn.Module
    inputs: Sequence[Batch]
    quality: Quality | None = None
    calibration: Sequence[Batch] = ()
    name: str = "model"
    num_samples: int = field(default=0)
    training: TrainingWorkload | Callable[[], TrainingWorkload] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TargetError(f"model must be a torch.nn.Module, not {type(self.model).__name__}")
        for name, batches in (("inputs", self.inputs), ("calibration", self.calibration)):
            if not isinstance(batches, list | tuple):
                raise TargetError(f"{name} must be a list of batches, not {type_name(batches)}")
        if not self.inputs:
            raise TargetError("inputs must hold at least one batch")
        if not self.calibration:
            object.__setattr__(self, "calibration", tuple(self.inputs))
        if self.num_samples <= 0:
            object.__setattr__(self, "num_samples", samples_of(self.inputs[0]))

    def __repr__(self) -> str:
        batches = f"{len(self.inputs)} batch{'es' if len(self.inputs) != 1 else ''} of {self.num_samples}"
        quality = "" if self.quality is None else f", quality={self.quality.name!r}"
        return f"InferenceWorkload({self.name!r}, {type(self.model).__name__}, {batches}{quality})"

    def open_training(self) -> TrainingWorkload:
        """Return the training that goes with the model, or raise TargetError where there is none."""
        found = self.training
        if callable(found):
            found = found()
        if not isinstance(found, TrainingWorkload):
            raise TargetError(f"training must be a TrainingWorkload, or a function that returns one, not {found!r}")
        return found

    @property
    def samples_per_batch(self) -> float:
        """Return the mean number of samples in a batch, since latency is a mean over batches too.

        The last batch may be smaller than the others.
        """
        sizes = [samples_of(batch) for batch in self.inputs]
        is_counted = self.num_samples == sizes[0]  # otherwise the user has given the number of samples
        return sum(sizes) / len(sizes) if is_counted else self.num_samples


def samples_of(batch: Batch) -> int:
    """Return the first dimension of a batch's first tensor; 1 where there is none."""
    first = next(iter(tensors_of(batch)), None)
    return max(1, int(first.shape[0])) if first is not None and first.dim() else 1
