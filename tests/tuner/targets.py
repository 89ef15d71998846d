"""Targets for the tests, named on the command line as FILE.py:FUNCTION."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet import Quality, Workload


class Conv(nn.Module):
    """Two convolutions and a classifier: small, but with something to gain."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.head(self.body(x_BCHW).mean((2, 3)))


def conv() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Conv().eval(), [torch.randn(2, 3, 32, 32)]


class Faulty(Conv):
    """Kills its own process when it is run in bfloat16."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.head.weight.dtype == torch.bfloat16:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x_BCHW)


def faulty() -> Workload:
    """Its quality collapses wherever an output is not exactly the original's."""
    torch.manual_seed(0)
    model, x_BCHW = Faulty().eval(), torch.randn(2, 3, 32, 32)
    exact = model(x_BCHW).detach()

    def measure(predict: object) -> float:
        return float(torch.equal(predict(x_BCHW), exact))  # type: ignore[operator]

    return Workload(model=model, inputs=[x_BCHW], quality=Quality("exactness", measure), name="faulty")


def tiny() -> tuple[nn.Module, Tensor]:
    """Nothing makes it faster."""
    torch.manual_seed(0)
    return nn.Linear(4, 4), torch.randn(1, 4)


def decoder() -> tuple[nn.Module, dict[str, Any]]:
    """A Hugging Face decoder with constants, an additive mask of -inf, and hidden states in its output."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    mask = torch.full((2, 1, 8, 8), -torch.inf).triu(1)
    inputs = {"input_ids": torch.randint(0, 50, (2, 8)), "attention_mask": mask}
    model = transformers.LlamaForCausalLM(config).eval()
    return model, {**inputs, "use_cache": False, "output_hidden_states": True}


class FixedBatch(nn.Module):
    """Its code names the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.linear(x_BD).view(4, 2, 4)


def fixed_batch() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return FixedBatch().eval(), torch.randn(4, 8)


def nothing() -> int:
    return 3


def mismatch() -> tuple[nn.Module, Tensor]:
    return nn.Linear(8, 8), torch.randn(2, 9)


def raises() -> tuple[nn.Module, Tensor]:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the wheel came off")

    return Broken(), torch.randn(2)


def nan() -> tuple[nn.Module, Tensor]:
    class NaN(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0.0 - x / 0.0

    return NaN(), torch.randn(2)


def random() -> tuple[nn.Module, Tensor]:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    return Random(), torch.randn(2)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


def branching() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Branching(), torch.ones(2, 4)


class Sleeping(Branching):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return self.layer(x)


def sleeping() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Sleeping(), torch.ones(2, 4)


def hangs() -> tuple[nn.Module, Tensor]:
    class Hangs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(600)
            return x

    return Hangs(), torch.randn(2)


HERE = str(Path(__file__))
