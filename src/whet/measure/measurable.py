"""What can be timed: a model that is called, a training that makes steps, a decoder that answers, a stream."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from whet.measure.evidence import Evidence


class Measurable(Protocol):
    """Something that is built fresh in a process of its own, and timed there."""

    @property
    def num_samples(self) -> float:
        """Samples that one call of `once` works on."""

    @property
    def num_kinds(self) -> int:
        """How many different calls `once` makes in turn: the n-th call equals the (n + num_kinds)-th. Often 1."""

    @property
    def is_sequence(self) -> bool:
        """Whether each call differs from all others, as the steps of a training do.

        Two variants are then compared on the calls that both of them made.
        """

    def measuring(self) -> AbstractContextManager[object]:
        """Return the context that all calls are made in, such as one without gradients."""

    def warm_up(self) -> None:
        """Make the calls that may be slow for once: those that compile, allocate, or fill caches."""

    def once(self) -> None:
        """Make one call: of the model, of an optimiser step, for a request, for a frame."""

    def evidence(self, folder: Path) -> Evidence | None:
        """Return what the calls returned or led to; None where there is nothing to hold against another variant's.

        Args:
            folder: A directory for the tensors of the evidence. It stays until the evidence has been compared.
        """
