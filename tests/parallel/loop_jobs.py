"""What processes do in the tests of whet.parallelize: a loop of one's own."""

from typing import Any

import torch
from stage_jobs import Net, batches, count, loss_of

import whet
from whet.errors import WhetError
from whet.parallel.pieces import whole_of


def made() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net().to(torch.float64)
    matrices, others = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=1e-2)


def looped(plan: dict[str, Any], num_parts: int = 1, rows: int = 5) -> dict[str, Any]:
    """Make the steps of a loop, and return its losses, norms, and the weights at its end."""
    model, optimizer = made()
    losses, norms = [], []
    with whet.parallelize(model, optimizer, whet.ParallelPlan(**plan)) as parallel:
        for batch in batches(4, rows):
            step = parallel.micro_batches(parallel.rows(batch), count, num_parts=num_parts)
            for part in step:
                step.backward(loss_of(parallel.model, part))
            norms.append(float(parallel.clip_grad_norm_(0.5)))
            parallel.optimizer.step()
            parallel.optimizer.zero_grad()
            losses.append(step.loss())
        weights = {name: whole_of(p.detach()).flatten().tolist() for name, p in model.named_parameters()}
    return {"losses": losses, "norms": norms, "weights": weights}


def refused(plan: dict[str, Any], num_parts: int = 1, rows: int = 5) -> str:
    """Return why a loop is refused; "" where it is not."""
    try:
        looped(plan, num_parts, rows)
    except WhetError as error:
        return str(error)
    return ""
