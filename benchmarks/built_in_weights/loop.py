"""Train all built-in workloads with one loop: AdamW, a warm-up and a cosine, bf16 where it is safe."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from whet.core.workload import TrainingWorkload, Workload, measure_quality
from whet.core.workload.training import Trainer


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Hold how long and how fast to learn.

    Attributes:
        steps: Optimiser steps.
        learning_rate: The highest learning rate, after the warm-up.
        weight_decay: The weight decay of matrices; vectors have none.
        warmup: Steps of the warm-up.
        clip: The norm that gradients are clipped to.
    """

    steps: int
    learning_rate: float
    weight_decay: float
    warmup: int = 50
    clip: float = 1.0


def fit(model: nn.Module, loss: Callable[[int], Tensor], schedule: Schedule) -> None:
    """Train a model in place.

    Args:
        model: The model; it is in eval mode in the end.
        loss: Takes the step's number and returns that step's loss.
        schedule: How long and how fast to learn.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]  # biases and norms must not shrink
    groups = [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": vectors, "weight_decay": 0.0}]

    def loss_in_bf16(model: nn.Module, step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(step)

    trainer = Trainer(
        TrainingWorkload(
            model=model,
            loss=loss_in_bf16,
            optimizer=lambda _: torch.optim.AdamW(groups, lr=schedule.learning_rate, betas=(0.9, 0.95)),
            batches=range(schedule.steps),
            clip_norm=schedule.clip,
            schedule=lambda optimizer: LambdaLR(optimizer, lambda step: _share(step, schedule)),
        ),
        keeps_losses=False,
    )
    for _ in track(range(schedule.steps), description="training"):
        trainer.step()
    model.eval()


def report(workload: Workload, baseline: float) -> None:
    """Print the held-out score of a workload just written, read back from its files."""
    assert workload.quality is not None
    score = measure_quality(workload.quality, workload.model)
    Console().print(f"{workload.name}: held-out {workload.quality.name} {score:.4f}, baseline {baseline:.4f}")


def _share(step: int, schedule: Schedule) -> float:
    """Return a step's learning rate as a share of the highest: a linear rise, then a cosine down to a twentieth."""
    warm = (step + 1) / schedule.warmup
    return min(warm, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / schedule.steps)))
