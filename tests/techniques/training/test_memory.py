"""The parts of a step's memory, for models and optimisers whose sizes are known."""

from collections.abc import Callable

import pytest
import torch
from tiny_training import tiny_workload, trainer_with
from torch import nn
from torch.optim import Optimizer

from whet.core.recipe import Step
from whet.techniques.costs.memory import step_memory

NUM = 128 * 256 + 256  # numbers of the layer below
PEAK = 10**9


def updated(optimizer: Callable[..., Optimizer], **options: object) -> tuple[nn.Module, Optimizer]:
    model = nn.Linear(128, 256)
    made = optimizer(model.parameters(), **options)
    model(torch.randn(4, 128)).sum().backward()
    made.step()
    return model, made


@pytest.mark.parametrize(
    ("optimizer", "options", "state"),
    [
        (torch.optim.SGD, {"lr": 0.1}, 0),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 4 * NUM),
        (torch.optim.AdamW, {}, 2 * 4 * NUM + 2 * 4),  # two means, and the number of the step for each of two tensors
        (torch.optim.Adafactor, {}, 4 * (256 + 128) + 4 * 256 + 2 * 4),  # rows and columns of the weight; the bias
    ],
)
def test_the_parts_are_those_of_the_optimizer(
    optimizer: Callable[..., Optimizer], options: dict[str, object], state: int
) -> None:
    memory = step_memory(*updated(optimizer, **options), PEAK)
    assert memory.parameter_bytes == memory.gradient_bytes == 4 * NUM
    assert memory.optimizer_bytes == state
    assert sum(memory.parts.values()) == memory.peak_bytes == PEAK


def test_states_of_8_bits_count_as_they_are_held() -> None:
    """One byte a number, a float32 scale for each block of 256, and a table of what the 256 codes stand for."""
    from torchao.optim.subclass_8bit import OptimState8bit

    model = nn.Linear(128, 256, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.state[model.weight] = {"exp_avg": OptimState8bit.zeros((256, 128)), "step": torch.tensor(1.0)}
    number = 128 * 256
    assert step_memory(model, optimizer, PEAK).optimizer_bytes == number + 4 * number // 256 + 4 * 256 + 4


def test_shared_weights_and_buffers() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(50, 20), "b": nn.Linear(20, 50, bias=False), "c": nn.BatchNorm1d(20)})
    model["b"].weight = model["a"].weight  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = step_memory(model, optimizer, PEAK)
    assert memory.parameter_bytes == 4 * (50 * 20 + 2 * 20 + 2 * 20) + 8, "the shared weight once, and the buffers"
    assert memory.gradient_bytes == 0, "no backward pass was made"


def test_gradients_that_are_freed_in_backward_are_no_part() -> None:
    trainer = trainer_with(tiny_workload(clip_norm=None), Step(technique="optimizer_in_backward"))
    trainer.step()
    assert step_memory(trainer.model, trainer.optimizer, PEAK).gradient_bytes == 0
