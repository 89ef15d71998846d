"""Define what can be timed: calls of a model, steps of a training, answers of a decoder, frames of a stream."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from whet.measure.evidence import Evidence


class Measurable(Protocol):
    """Define something that is built in a process of its own, and timed there."""

    @property
    def num_samples(self) -> float:
        """Return how many samples one call of `once` works on."""

    @property
    def num_kinds(self) -> int:
        """Return how many different calls `once` makes in turn: call n equals call n + num_kinds."""

    @property
    def is_sequence(self) -> bool:
        """Return whether each call differs from all others, as the steps of a training do.

        Two variants are then compared on the calls that both of them made.
        """

    def measuring(self) -> AbstractContextManager[object]:
        """Return the context that all calls are made in, such as one without gradients."""

    def warm_up(self) -> None:
        """Make the first calls, which may be slow because they compile, allocate, or fill caches."""

    def once(self) -> None:
        """Make one call: run the model, an optimiser step, a request, or a frame."""

    def evidence(self, folder: Path) -> Evidence | None:
        """Return what the calls returned or led to; None where there is nothing to hold against another variant's.

        `folder` is a directory for the tensors of the evidence. It stays until the evidence has been compared.
        """
