"""Sum the gradients of one step over micro-batches and processes, weighed by the targets of each."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from whet.core.workload.batch_parts import parts_of
from whet.errors import TargetError
from whet.parallel.compression import compression_of
from whet.parallel.division import Division, accumulating

CountsTargets = Callable[[Any], int]
"""Return how many targets a batch has: what its loss is the mean of."""


class SummedStep:
    """Iterate over the micro-batches of this process, and leave the gradients of the mean over all targets of all.

    Where rows have different numbers of targets, as padded ones have, micro-batches and processes do too: a mean of
    their means would be another loss.
    """

    def __init__(self, division: Division, called: nn.Module, batch: Any, num_parts: int, count: CountsTargets) -> None:
        """Divide a batch, which holds this process's rows, into micro-batches: as many as on all other processes.

        Args:
            called: What the loop calls in the place of the model.
            count: Counts the targets of a micro-batch, which its loss is the mean of.

        Raises:
            OptionError: The plan's engine cannot accumulate them.
        """
        division.check_parts(num_parts)
        self._division, self._called = division, called
        parts = parts_of(batch, num_parts)
        counts = [count(part) for part in parts]
        missing = num_parts - len(parts)  # all processes must call the model equally often
        self._parts, self._counts = parts + parts[:1] * missing, counts + [0] * missing
        [self._total] = division.total([sum(counts)])
        self._sum = 0.0
        self._open: int | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        """Yield the micro-batches; `backward` must be called once for each.

        Raises:
            ModelError: Gradients were finite before they were compressed, and are not afterwards.
        """
        for number, (part, count) in enumerate(zip(self._parts, self._counts, strict=True), 1):
            with accumulating(self._division, self._called, is_last=number == len(self)):
                self._open = count
                yield part
                if self._open is not None:
                    raise TargetError("backward(loss) was not called for a micro-batch; call it once for each")
        if (compression := compression_of(self._called)) is not None:
            compression.end_step()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch.

        Args:
            loss: The mean over its targets, a tensor of one element.

        Raises:
            TargetError: It was called outside of the loop over micro-batches, or twice for one.
        """
        if self._open is None:
            raise TargetError("backward(loss) goes with one micro-batch each; call it once within the loop over them")
        count, self._open = self._open, None
        # Processes average their gradients, hence their number. A mean over no targets is not a number.
        (loss * (count * self._division.degrees.data / self._total)).backward()
        if count:
            self._sum += float(loss.detach()) * (count / self._total)

    def loss(self) -> float:
        """Return the mean over all targets of all processes; all must call this."""
        [whole] = self._division.total([self._sum])
        return whole
