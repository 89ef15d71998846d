"""Say what the memory of a training step is made of."""

from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from whet.measure.device import device_type_of
from whet.techniques.costs.saved_activations import SavedActivations
from whet.techniques.mechanisms.cpu_offloaded_gradients import numbers_of
from whet.techniques.mechanisms.master_weights import has_master, value_of
from whet.techniques.mechanisms.used_gradients import UsedGradient

PARTS = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimiser",
    "other_bytes": "activations and the rest",
}


class StepMemory(BaseModel, frozen=True):
    """Hold the memory of a training step, in bytes.

    Attributes:
        peak_bytes: The most that the process held during a step, above what it held before the model was built; on a
            GPU, the peak of the allocator.
        parameter_bytes: The model's parameters and buffers.
        gradient_bytes: The gradients that are held after an update. Those that a technique frees within the step, as
            the optimiser in backward does, are part of the rest.
        optimizer_bytes: The optimiser's state, and its float32 copies of parameters that are bfloat16.
        other_bytes: The rest of the peak: activations, temporary tensors, generated code, batches.
        saved: What forward saves for backward; None where that was not measured.
    """

    peak_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int
    saved: SavedActivations | None = None

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes of each part, by its name in words."""
        return {words: getattr(self, name) for name, words in PARTS.items()}

    def left(
        self, *, parameters: float = 1.0, gradients: float = 1.0, optimizer: float = 1.0, other: float = 1.0
    ) -> float:
        """Return the bytes of a step where only a share of each part is left."""
        return (
            parameters * self.parameter_bytes
            + gradients * self.gradient_bytes
            + optimizer * self.optimizer_bytes
            + other * self.other_bytes
        )


def step_memory(model: nn.Module, optimizer: Optimizer, peak_bytes: int) -> StepMemory:
    """Divide a peak among parameters, gradients, the optimiser's state and the rest. Call it after an update.

    What lies in another memory than the model, as the host's, is no part of the peak.
    """
    kind = device_type_of(model.parameters())
    parameters = _num_bytes([*model.parameters(), *model.buffers()], kind)
    left = [p.grad for p in model.parameters() if p.grad is not None and not isinstance(p.grad, UsedGradient)]
    gradients = _num_bytes(map(numbers_of, left), kind)
    state = _num_bytes(
        [x for x in tree_leaves([dict(one) for one in optimizer.state.values()]) if isinstance(x, Tensor)]
        + [value_of(p) for p in model.parameters() if has_master(p)],
        kind,
    )
    peak_bytes = max(0, peak_bytes)
    other = max(0, peak_bytes - parameters - gradients - state)
    return StepMemory(
        peak_bytes=peak_bytes,
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=state,
        other_bytes=other,
    )


def _num_bytes(tensors: Iterable[Tensor], device_type: str) -> int:
    """Return the bytes of tensors on devices of a type; storages that several of them share count once."""
    storages = [x.untyped_storage() for tensor in tensors for x in _plain(tensor) if x.device.type == device_type]
    return sum({(x.device, x.data_ptr()): x.nbytes() for x in storages}.values())


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold a tensor's numbers in this process.

    An 8-bit optimiser's state is made of codes and their scales.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _plain(getattr(tensor, name))
