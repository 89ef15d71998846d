"""One training loop for all built-in workloads: AdamW, a warm-up and a cosine, bf16 where it is safe."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from whet.workload import Workload, measure_quality


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """steps: of the optimiser. learning_rate: at its highest, after the warm-up."""

    steps: int
    learning_rate: float
    weight_decay: float
    warmup: int = 50
    clip: float = 1.0  # the gradient's norm


def fit(model: nn.Module, loss: Callable[[int], Tensor], schedule: Schedule) -> None:
    """Train a model in place; `loss` takes the step's number and returns that step's loss."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]  # biases and norms must not shrink
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=schedule.learning_rate,
        betas=(0.9, 0.95),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share(step, schedule))
    model.train()
    for step in track(range(schedule.steps), description="training"):
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(step)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        scheduler.step()
    model.eval()


def report(workload: Workload, baseline: float) -> None:
    """Print the held-out score of a workload just written, read back from its files."""
    assert workload.quality is not None
    score = measure_quality(workload.quality, workload.model)
    Console().print(f"{workload.name}: held-out {workload.quality.name} {score:.4f}, baseline {baseline:.4f}")


def _share(step: int, schedule: Schedule) -> float:
    """The share of the highest learning rate at a step: a straight climb, then a cosine down to a twentieth."""
    warm = (step + 1) / schedule.warmup
    return min(warm, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / schedule.steps)))
