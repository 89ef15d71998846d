"""Small training loops with faults planted in them, for the tests of watching."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

NUM_FEATURES = 8


class Sleepy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take their time."""

    def __init__(self, num_samples: int, sleep_s: float) -> None:
        self.samples = TensorDataset(torch.randn(num_samples, NUM_FEATURES), torch.randn(num_samples, 1))
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sleep_s)
        return self.samples[index]


class SleepyModel(nn.Module):
    """A linear layer that takes its time."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(NUM_FEATURES, 1)
        self.sleep_s = sleep_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.sleep_s)
        return self.linear(x)


class SleepySGD(torch.optim.SGD):
    """An optimiser that takes its time."""

    sleep_s = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.sleep_s)
        return super().step(closure)


class SleepyBackward(torch.autograd.Function):
    """The identity, whose backward pass takes five milliseconds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(0.005)
        return grad


def parts(
    num_batches: int, *, data_s: float = 0.0, forward_s: float = 0.0, step_s: float = 0.0
) -> tuple[SleepyModel, SleepySGD, DataLoader[Any]]:
    """A model, an optimiser and a loader of batches of one, each as slow as wanted."""
    model = SleepyModel(forward_s)
    optimizer = SleepySGD(model.parameters(), lr=0.01)
    optimizer.sleep_s = step_s
    return model, optimizer, DataLoader(Sleepy(num_batches, data_s), batch_size=1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> Iterator[Tensor]:
    """The plainest loop; gives each loss, so that a test can do something with it within the step."""
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss


def run(steps: Iterator[Any]) -> None:
    """To the end, keeping nothing: a list of losses is a leak."""
    deque(steps, maxlen=0)
