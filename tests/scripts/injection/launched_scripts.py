"""Scripts that train in several processes, what they should train, and a run of them on ranks that are forks."""

import sys
from pathlib import Path

import torch

from whet.core.recipe import Step
from whet.scripts.injection.command import ScriptOutcome, run_bounded
from whet.scripts.injection.messages import ScriptRequest
from whet.scripts.injection.script_command import ScriptCommand

BIN = Path(sys.executable).parent
TWO = ("--standalone", "--nproc-per-node", "2")
TORCHRUN = (str(BIN / "torchrun"), *TWO)
FUSED, CHECKPOINTING = Step(technique="fused_optimizer"), Step(technique="checkpointing")

MODEL = """
import sys
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return x + torch.tanh(self.inner(x))

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 4))
x, y = torch.randn(16, 8), torch.randn(16, 4)
"""

DDP = f"""{MODEL}
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = (model(x[rank::size]) - y[rank::size]).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    loss = loss.detach()
    distributed.all_reduce(loss)
    if rank == 0:
        print("loss", loss.item() / size, flush=True)
distributed.destroy_process_group()
"""

DDP_LOADER = DDP.replace(
    "model = DistributedDataParallel(model)",
    """model = DistributedDataParallel(model)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))""",
)
DDP_LOADER = DDP_LOADER.replace(
    "for step in range(int(sys.argv[1])):", "for inputs, targets in (row for _ in range(100) for row in loader):"
)
DDP_LOADER = DDP_LOADER.replace("x[rank::size]", "inputs").replace("y[rank::size]", "targets")

FSDP2 = DDP.replace(
    "model = DistributedDataParallel(model)",
    """from torch.distributed.fsdp import fully_shard
for part in (model[1], model[2], model):
    fully_shard(part)""",
)

ACCELERATE = f"""{MODEL}
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
size = accelerator.num_processes
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, y), batch_size=16 // size)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step in range(int(sys.argv[1])):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        loss = accelerator.reduce(loss.detach())
        if accelerator.is_main_process:
            print("loss", loss.item() / size, flush=True)
accelerator.end_training()
"""

LONG_ALONE = ACCELERATE.replace("optimizer.zero_grad()", "optimizer.zero_grad(); open('going', 'w').close()")
LONG = DDP.replace("    optimizer.zero_grad()", "    optimizer.zero_grad(); open('going', 'w').close()")


def reference_losses(num_steps: int) -> list[float]:
    """Return the losses of the same training in one process, of whole batches, in float64."""
    scope: dict[str, object] = {"__name__": "reference"}
    exec(MODEL, scope)
    model, x, y = (scope[name].double() for name in ("model", "x", "y"))  # type: ignore[attr-defined]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def bounded(place: Path, source: str, *arguments: str, **asked: object) -> ScriptOutcome:
    """Run a script for 8 steps, or fewer, on two ranks that are forks."""
    (place / "train.py").write_text(source)
    command = ScriptCommand.checked([*TORCHRUN, "train.py", *(arguments or ("100",))])
    request = ScriptRequest.model_validate({"num_steps": 8, **asked})
    return run_bounded(command, request, place.parent / "scratch", limit_s=60)
