"""Say which part of a training step takes how much memory, and what makes the largest part smaller."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from whet.errors import TargetError, WhetError, is_out_of_memory, memory_shortage, reason
from whet.measure.memory import free_bytes
from whet.techniques.costs.memory import step_memory
from whet.techniques.costs.saved_activations import saved_activations
from whet.techniques.training.accumulation import ACCUMULATION
from whet.trainer.setup import SetUp
from whet.ui.figures import num_bytes

_FLOAT_BYTES = 4
_MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1}  # tensors of a parameter's size in the optimiser's state
_WEIGHTS, _GRADIENTS, _OPTIMIZER = "the weights", "their gradients", "the optimiser's state"
_LOGITS, _KEPT = "logits with their gradients", "activations that are kept for backward"


@dataclass(frozen=True)
class MemoryParts:
    """Hold the bytes of a step by part, as far as they follow from sizes. A step computes `rows` rows at once."""

    rows: int
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def sentence(self) -> str:
        """Return the parts, the largest first, and what makes the largest one smaller."""
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        told = ", ".join(f"{name} {num_bytes(size)}" for name, size in parts if size)
        return f"{self.rows} rows at once take, by part: {told}. {self._advice(parts[0][0])}"

    def _advice(self, largest: str) -> str:
        fewer = f"set batch.micro_batch_size to {max(1, self.rows // 2)} or fewer" if self.rows > 1 else ""
        shorter = fewer or "set a smaller data.sequence_length"
        by_part = {
            _LOGITS: f"{shorter}, or let --tune memory find a recipe, such as one with chunked_loss",
            _KEPT: f"{shorter}, or let --tune memory find a recipe, such as one with checkpointing",
            _OPTIMIZER: "let --tune memory find a recipe, such as one with adafactor or adamw_8bit",
        }
        other = "make the model smaller, or let --tune memory find a recipe, such as one with bf16_parameters"
        return f"To make the largest part smaller, {by_part.get(largest, other)}"


def memory_parts(setup: SetUp, optimizer: Optimizer | None = None) -> MemoryParts:
    """Return what a step takes, part by part. Activations are not part of it.

    Args:
        optimizer: The optimiser, whose state counts as it is; None or an optimiser without a state counts what the
            configuration's own would have after a step.
    """
    model, config = setup.model, setup.config
    known = step_memory(model.module, optimizer, 0) if optimizer is not None and optimizer.state else None
    weights = sum(x.nbytes for x in [*model.module.parameters(), *model.module.buffers()])
    gradients = sum(p.nbytes for p in model.module.parameters() if p.requires_grad)
    moments = _MOMENTS[config.optimizer.name] if config.optimizer.name != "sgd" or config.optimizer.momentum else 0
    rows = setup.rows_at_once
    found = {
        _WEIGHTS: weights,
        _GRADIENTS: gradients,
        _OPTIMIZER: moments * gradients if known is None else known.optimizer_bytes,
    }
    has_logits = config.task == "language"  # those of a classification are small
    if has_logits and not any(step.technique == "chunked_loss" for step in setup.steps):
        # The loss keeps the logarithms of the probabilities, and backward makes a gradient of the same size.
        found[_LOGITS] = 2 * rows * config.data.sequence_length * model.vocab_size * _FLOAT_BYTES
    return MemoryParts(rows, found)


def check_memory(setup: SetUp) -> None:
    """Raise TargetError where a step surely exceeds the free memory. A recipe may need less, and is not checked."""
    if any(step.technique != ACCUMULATION for step in setup.steps):
        return
    found = memory_parts(setup)
    on_gpu = setup.device.type == "cuda"
    free = torch.cuda.mem_get_info(setup.device)[0] if on_gpu else free_bytes(with_swap=True)
    needed = found.total - found.parts[_WEIGHTS]  # which are there already
    if needed > free:
        raise TargetError(
            f"a step needs {num_bytes(needed)} more memory, and {num_bytes(free)} are free: {found.sentence}"
        )


@contextmanager
def memory_told(when: str, setup: SetUp, optimizer: Optimizer | None = None) -> Iterator[None]:
    """Say what takes the memory, and what to do, where memory runs out in the block.

    Args:
        when: In which part of the run, as "in step 3".

    Raises:
        TargetError: Memory ran out.
    """
    try:
        yield
    except WhetError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # the tensors of the step go
        found = memory_parts(setup, optimizer)
        with suppress(Exception):  # it may need more memory than there is
            kept = saved_activations(setup.model.module, setup.model.loss, setup.data.one_row())  # of one row
            found.parts[_KEPT] = found.rows * sum(kept.blocks)
        raise TargetError(f"memory ran out {when} ({memory_shortage(reason(error))}): {found.sentence}") from error
