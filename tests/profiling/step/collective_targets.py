"""What two processes do while the watcher looks: collectives, functional ones, and a training step under FSDP2."""

from dataclasses import asdict
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from whet.measure.group import joined
from whet.profiling.step.watch import watch


def train(kind: str) -> dict[str, Any]:
    """Train a few steps with one kind of communication. Returns the watcher's report."""
    with joined() as rank:
        torch.manual_seed(0)
        model: nn.Module = nn.Linear(64, 64)
        if kind == "fsdp":
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(8, 64) for _ in range(12)]
        steps = watch(model, optimizer, batches)
        with steps:
            for batch in steps:
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if kind == "all_reduce":
                    distributed.all_reduce(model.weight.grad)
                if kind == "functional":
                    gathered = functional.all_reduce(model.weight.grad, "sum", distributed.group.WORLD)
                    model.weight.grad.copy_(functional.wait_tensor(gathered))
                optimizer.step()
        report = asdict(steps.report())
        return {"rank": rank, "sites": [site["call"] if "call" in site else str(site) for site in report["sites"]]}
