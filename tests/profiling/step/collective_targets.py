"""What two processes do while the watcher looks. The second one is late in each step, by a time that is known."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from whet.parallel.ranks import Ranks
from whet.profiling.step.phases import Phase
from whet.profiling.step.watch import watch

LATE_S = 0.06
WORK_S = 0.02  # what each process does while a collective runs
NUM_STEPS = 12

Step = Callable[[Tensor], Tensor]


class SlowBackward(torch.autograd.Function):
    """The identity, whose backward pass takes WORK_S."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        time.sleep(WORK_S)
        return grad


class Net(nn.Module):
    """Two layers, between whose backward passes there is other work."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(SlowBackward.apply(self.first(x)))
        return found


def watched(ranks: Ranks, kinds: list[str]) -> dict[str, dict[str, Any]]:
    """Train with each kind of communication, and return what the watcher saw: milliseconds a step, and lines."""
    return {kind: _watched(ranks, kind) for kind in kinds}


def _watched(ranks: Ranks, kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, step = _KINDS[kind](ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = watch(model, optimizer, [torch.randn(8, 64) for _ in range(NUM_STEPS)])
    with steps:
        for batch in steps:
            optimizer.zero_grad()
            if ranks.rank and kind != "pipeline":
                time.sleep(LATE_S)
            step(batch)
            optimizer.step()
    report = steps.report()
    records = steps.recent()[2:]
    return {
        "exposed": median(record.ns[Phase.COMMUNICATION] for record in records) / 1e6,
        "least": min(record.ns[Phase.COMMUNICATION] for record in records) / 1e6,
        "sync": max(record.ns[Phase.SYNC] for record in records) / 1e6,
        "overlapped": report.overlapped_ms,
        "calls": {site.call for site in report.sites if site.phase == "communication"},
        "lines": [site.line for site in report.sites if site.phase == "communication"],
        "verdict": str(report.verdict),
        "text": str(report),
    }


def _plain(loss: Callable[[nn.Module, Tensor], Tensor], model: nn.Module) -> tuple[nn.Module, Step]:
    def step(batch: Tensor) -> Tensor:
        found = loss(model, batch)
        found.backward()
        return found

    return model, step


def _square(model: nn.Module, batch: Tensor) -> Tensor:
    found: Tensor = model(batch).square().mean()
    return found


def _blocking(ranks: Ranks) -> tuple[nn.Module, Step]:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        distributed.all_reduce(torch.zeros(8))
        return _square(model, batch)

    return _plain(loss, nn.Linear(64, 64))


def _asynchronous(ranks: Ranks) -> tuple[nn.Module, Step]:
    """The first process works for a third of the time by which the other is late, and then waits."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        work = distributed.all_reduce(torch.zeros(8), async_op=True)
        time.sleep(WORK_S)
        work.wait()
        return _square(model, batch)

    return _plain(loss, nn.Linear(64, 64))


def _hidden(ranks: Ranks) -> tuple[nn.Module, Step]:
    """The first process works for three times what the other is late, so that the collective ends long before.

    The other one then waits for twice as long as it was late, and so for longer than its loop took.
    """

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        work = distributed.all_reduce(torch.zeros(8), async_op=True)
        time.sleep(0 if ranks.rank else 3 * LATE_S)
        work.wait()
        distributed.barrier()
        return _square(model, batch)

    return _plain(loss, nn.Linear(64, 64))


def _ddp(ranks: Ranks) -> tuple[nn.Module, Step]:
    return _plain(_square, DistributedDataParallel(Net(), bucket_cap_mb=0.005))


def _fsdp(ranks: Ranks) -> tuple[nn.Module, Step]:
    model = Net()
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh)
    return _plain(_square, model)


def _dtensor(ranks: Ranks) -> tuple[nn.Module, Step]:
    mesh = init_device_mesh("cpu", (2,))
    shared = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        whole = shared.redistribute(mesh, [Replicate()]).to_local()
        time.sleep(WORK_S)
        return _square(model, batch @ whole)

    return _plain(loss, nn.Linear(64, 64))


class SlowStage(nn.Linear):
    """The second stage, whose forward pass takes half of LATE_S."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(LATE_S / 2)
        return super().forward(x)


def _pipeline(ranks: Ranks) -> tuple[nn.Module, Step]:
    model = SlowStage(64, 64) if ranks.rank else nn.Linear(64, 64)
    stage = PipelineStage(model, ranks.rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())

    def step(batch: Tensor) -> Tensor:
        schedule.step(**{"target": batch}) if ranks.rank else schedule.step(batch)
        return batch

    return model, step


_KINDS: dict[str, Callable[[Ranks], tuple[nn.Module, Step]]] = {
    "blocking": _blocking,
    "asynchronous": _asynchronous,
    "hidden": _hidden,
    "ddp": _ddp,
    "fsdp": _fsdp,
    "dtensor": _dtensor,
    "pipeline": _pipeline,
}
