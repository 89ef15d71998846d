"""Say what the memory of a training step is made of."""

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.optim import Optimizer

PARTS = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimiser",
    "other_bytes": "activations and the rest",
}


class StepMemory(BaseModel):
    """Hold the memory of a training step, in bytes.

    Attributes:
        peak_bytes: The most that the process held during a step, above what it held before the model was built; on a
            GPU, the peak of the allocator.
        parameter_bytes: The model's parameters and buffers.
        gradient_bytes: Their gradients.
        optimizer_bytes: The optimiser's state.
        other_bytes: The rest of the peak: activations, temporary tensors, generated code, batches.
    """

    model_config = ConfigDict(frozen=True)

    peak_bytes: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes of each part, by its name in words."""
        return {words: getattr(self, name) for name, words in PARTS.items()}


def step_memory(model: nn.Module, optimizer: Optimizer, peak_bytes: int) -> StepMemory:
    """Divide a peak among parameters, gradients, the optimiser's state and the rest. Call it after an update."""
    parameters = _num_bytes([*model.parameters(), *model.buffers()])
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = _num_bytes([p if p.grad is None else p.grad for p in trained])
    state = _num_bytes([x for one in optimizer.state.values() for x in one.values() if isinstance(x, Tensor)])
    other = max(0, peak_bytes - parameters - gradients - state)
    return StepMemory(
        peak_bytes=peak_bytes,
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=state,
        other_bytes=other,
    )


def _num_bytes(tensors: list[Tensor]) -> int:
    """Return the bytes of tensors; storages that several of them share count once."""
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())
