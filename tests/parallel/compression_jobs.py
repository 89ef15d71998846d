"""What processes do in the tests of compression: train a small decoder whose gradients are sent in fewer bytes."""

import copy
import os
from functools import partial
from typing import Any

import torch
from stage_jobs import Net, batches, count, loss_of
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.errors import ModelError
from whet.parallel.division import division_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks

ROWS = 6


def made(
    ranks: Ranks, plan: dict[str, Any], dtype: str = "float64", scale: float = 1.0, local_size: int | None = None
) -> RankTrainer:
    """Return the trainer of a process; each `local_size` processes stand for a machine."""
    if local_size is not None:
        os.environ["GROUP_RANK"] = str(ranks.rank // local_size)
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    torch.manual_seed(0)
    model = Net(width=32).to(getattr(torch, dtype))
    division.share(model)
    workload = TrainingWorkload(
        model=model,
        loss=partial(_scaled, scale),
        optimizer=division.optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.5)),
        batches=[None],
    )
    return RankTrainer(workload, division, count)


def _scaled(scale: float, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return loss_of(model, batch) * scale


def rows_of(ranks: Ranks, step: int) -> dict[str, Tensor]:
    """Return this process's rows of a step; there are three different batches."""
    share = slice(ranks.rank * ROWS // ranks.world_size, (ranks.rank + 1) * ROWS // ranks.world_size)
    return {name: x[share] for name, x in batches(3, ROWS)[step % 3].items()}


def compressed(
    ranks: Ranks,
    plan: dict[str, Any],
    dtype: str = "float64",
    steps: int = 1,
    scale: float = 1.0,
    local_size: int | None = None,
) -> dict[str, Any]:
    """Make steps, and return the losses, the last gradients as one list, and what compression changed in them."""
    trainer = made(ranks, plan, dtype, scale, local_size)
    losses = [float(trainer.step_on([rows_of(ranks, step)])) for step in range(steps)]
    gradient = torch.cat([p.grad.flatten().double() for p in trainer.model.parameters() if p.grad is not None])
    found = {"losses": losses, "gradient": gradient.tolist()}
    if trainer.compression is not None:
        found |= {"samples": trainer.compression.samples, "bound": trainer.compression.bound}
    return found


def refused(ranks: Ranks, plan: dict[str, Any], scale: float) -> tuple[str, bool]:
    """Make a step, and return why it was refused, and whether the weights are those before."""
    trainer = made(ranks, plan, "float32", scale)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    message = ""
    try:
        trainer.step_on([rows_of(ranks, 0)])
    except ModelError as error:
        message = str(error)
    return message, all(map(torch.equal, before, trainer.model.parameters()))


def resumed(ranks: Ranks, plan: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the losses of steps 4 to 8 of a run, and of one that goes on from its state after step 4."""
    first = made(ranks, plan)
    for step in range(4):
        first.step_on([rows_of(ranks, step)])
    second = made(ranks, plan)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    assert first.compression is not None
    assert second.compression is not None
    second.compression.restore(4, first.compression.state())
    found = [[float(one.step_on([rows_of(ranks, step)])) for step in range(4, 9)] for one in (first, second)]
    return found[0], found[1]


def each(ranks: Ranks, calls: list[tuple[Any, ...]]) -> list[Any]:
    """Return what functions of this module return, each given as a tuple of it and its arguments after the first."""
    return [function(ranks, *args) for function, *args in calls]
