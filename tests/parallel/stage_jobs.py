"""What processes do in the tests of parallel/: train a small model, and return what must not depend on their number."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.parallel.division import division_of, inner_optimizer
from whet.parallel.pieces import whole_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks

IGNORED = -100


class Net(nn.Module):
    """Embed tokens, apply residual blocks, and return logits [B, T, V]."""

    def __init__(self, vocab: int = 19, width: int = 12, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.head(x)
        return found


def batches(steps: int, rows: int, length: int = 7, vocab: int = 19) -> list[dict[str, Tensor]]:
    """Return batches whose rows have different numbers of targets, the first row of some none."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for step in range(steps):
        ids = torch.randint(vocab, (rows, length), generator=generator)
        targets = torch.randint(vocab, (rows, length), generator=generator)
        for row in range(rows):
            targets[row, (3 * row + step) % length + 1 :] = IGNORED
        if step == 1:
            targets[0] = IGNORED
        found.append({"ids": ids, "targets": targets})
    return found


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED)


def count(batch: dict[str, Tensor]) -> int:
    return int((batch["targets"] != IGNORED).sum())


def trained(
    ranks: Ranks, plan: dict[str, Any], dtype: str = "float64", rows: int = 5, steps: int = 4, num_parts: int = 1
) -> dict[str, Any]:
    """Make steps, and return the losses, the norms, the gradients of the first step, and the weights at the end."""
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    torch.manual_seed(0)
    model = Net().to(getattr(torch, dtype))
    division.share(model)
    share = slice(
        division.data_rank * rows // division.degrees.data, (division.data_rank + 1) * rows // division.degrees.data
    )
    mine = [{name: x[share] for name, x in batch.items()} for batch in batches(steps, rows)]
    workload = TrainingWorkload(
        model=model,
        loss=loss_of,
        optimizer=division.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)),
        batches=mine,
        clip_norm=0.5,
    )
    trainer = RankTrainer(workload, division, count, num_parts=num_parts)
    losses, norms = [], []
    gradients: dict[str, list[float]] = {}
    for step in range(steps):
        losses.append(float(trainer.step_on([mine[step]])))
        norms.append(float(trainer.gradient_norm))
        if not step:
            gradients = {
                n: whole_of(p.grad).flatten().tolist() for n, p in model.named_parameters() if p.grad is not None
            }
    weights = {name: whole_of(p.detach()).flatten().tolist() for name, p in model.named_parameters()}
    state_bytes = sum(
        x.to_local().nbytes if hasattr(x, "to_local") else x.nbytes
        for entry in inner_optimizer(trainer.optimizer).state.values()
        for x in entry.values()
        if isinstance(x, Tensor)
    )
    return {"losses": losses, "norms": norms, "gradients": gradients, "weights": weights, "state_bytes": state_bytes}
