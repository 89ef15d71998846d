"""Make a TrainingWorkload of a configuration: what whet tune tunes and the loop of whet train runs."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from whet.core.workload import Predict, Quality, TrainingWorkload
from whet.core.workload.plain_parameters import plain_parameters
from whet.trainer.config import TrainConfig
from whet.trainer.model import Batch, TrainedModel
from whet.trainer.sections import OptimizerSection, ScheduleSection

HELD_OUT_LOSS = "held-out loss"


@dataclass(frozen=True)
class Schedule:
    """Give the learning rate of a step as a part of the highest one."""

    section: ScheduleSection
    steps: int

    def __call__(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        section = self.section
        if step < section.warmup_steps:
            return (step + 1) / section.warmup_steps
        if section.kind == "constant":
            return 1.0
        begin = section.warmup_steps
        if section.kind == "wsd":
            begin = max(begin, self.steps - math.ceil(section.decay_share * self.steps))
        done = min(1.0, max(0.0, (step - begin) / max(1, self.steps - begin)))
        left = 0.5 * (1 + math.cos(math.pi * done)) if section.kind == "cosine" else 1 - done
        return section.min_lr_ratio + (1 - section.min_lr_ratio) * left


@dataclass(frozen=True)
class MakesOptimizer:
    """Make the optimiser of a configuration. Matrices decay; norms, biases and the rates of scans do not."""

    section: OptimizerSection
    model: nn.Module

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        section, known = self.section, [p for p in parameters if p.requires_grad]
        plain = plain_parameters(self.model)
        decays = [p.dim() >= 2 and id(p) not in plain for p in known]
        groups = [
            {"params": list(compress(known, decays)), "weight_decay": section.weight_decay},
            {"params": list(compress(known, map(operator.not_, decays))), "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if section.name == "sgd":
            return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum)
        kind = torch.optim.AdamW if section.name == "adamw" else torch.optim.Adam
        return kind(groups, lr=section.lr, betas=section.betas, eps=section.eps)


def workload_of(
    config: TrainConfig, model: TrainedModel, batches: Iterable[Batch], held_out: list[Batch], name: str
) -> TrainingWorkload:
    """Return the training run that a configuration describes; `batches` are those of whole optimiser steps."""

    def nats(predict: Predict) -> float:
        return model.scores(_Called(predict), held_out)["held_out_loss"]

    is_of_texts = config.task == "classification"
    return TrainingWorkload(
        model=model.module,
        loss=model.loss,
        optimizer=MakesOptimizer(config.optimizer, model.module),
        batches=batches,
        evaluation=Quality(HELD_OUT_LOSS, nats, higher_is_better=False) if held_out else None,
        clip_norm=config.optimizer.max_norm or None,
        schedule=lambda optimizer: LambdaLR(optimizer, Schedule(config.schedule, config.steps)),
        seed=config.seed,
        num_samples=float(config.batch.global_batch_size * (1 if is_of_texts else config.data.sequence_length)),
        name=name,
    )


class _Called(nn.Module):
    """Stand for a model whose call is given."""

    def __init__(self, predict: Predict) -> None:
        super().__init__()
        self._predict = predict

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        found: Tensor = self._predict(*args, **kwargs)
        return found
