"""What each plan of whet.parallelize costs beside the same training written by hand, and what each process holds.

    python benchmarks/parallel.py [--blocks 12] [--steps 4] [--out docs/results/parallel.json]

Two processes with one thread each train a decoder in blocks of steps, in turn by whet's plan and by hand on the same
engines of PyTorch, in an order that is drawn; the ratio of a pair of blocks is that of their times. The aim is 0.98 of
the hand-written one's throughput at least. One process with two threads makes the same steps beside it.

Memory is counted by storages of weights, gradients and the optimiser's state, each once, whoever shows it: the model,
whose weights are the gathered ones while FSDP2 has them, or the optimiser, which has this process's parts. "Kept" is
what is there after the optimiser's step, before gradients are set to none; "most" is the largest sum at any layer's
forward or backward, or then. Activations and the buffers of collectives are not in it. The table of ZeRO (Rajbhandari
et al., 2020, arXiv:1910.02054, section 5) has, for float32 with Adam, 4 bytes of a parameter, 4 of its gradient, 8 of
the optimiser's state. FSDP2 differs from it:

- stage 2 keeps parameters divided between steps, where ZeRO has whole ones; it gathers them in forward and keeps them
  until backward has used them. So "kept" is that of stage 3, and "most" is as large as the table's or larger;
- stage 3 gathers a unit at a time, a block or what is in none: "most" is above the table by the largest units.

ZeRO 1 keeps whole gradients, as the table has it, and parameters that all processes have.
"""

import argparse
import functools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from decoder_on_ranks import (
    LENGTH,
    PARTS,
    RANKS,
    ROWS,
    SIZES,
    STAGES,
    Step,
    adamw,
    batches,
    by_whet,
    decoder,
    loss_of,
    on_ranks,
    timed,
)
from goals import verdict
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from whet.core.workload.blocks import blocks_of
from whet.files import write_whole
from whet.measure.stats import paired_ratio
from whet.parallel.division import inner_optimizer
from whet.parallel.parallelize import parallelize
from whet.parallel.plan import ParallelPlan

AIM = 0.98
RESULT = Path(__file__).parents[1] / "docs" / "results" / "parallel.json"


def by_hand(stage: int) -> Step:
    """Return a step as people write it for an engine of PyTorch."""
    model: nn.Module = decoder()
    if stage >= 2:
        from torch.distributed.fsdp import fully_shard

        for block in blocks_of(model):
            fully_shard(block, reshard_after_forward=stage == 3)
        fully_shard(model, reshard_after_forward=stage == 3)
    else:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if stage == 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = adamw(model.parameters())
    rank = distributed.get_rank()

    def step(ids: Tensor) -> float:
        mine = ids[rank * ROWS // RANKS : (rank + 1) * ROWS // RANKS]
        loss = loss_of(model, mine)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        distributed.all_reduce(mean)
        return float(mean) / RANKS

    return step


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimiser's state that a step keeps, and the most within it."""
    counted: list[int] = []
    kept: list[int] = []
    layers = [one for one in model.modules() if next(one.parameters(recurse=False), None) is not None]

    def count(*_: Any) -> None:
        counted.append(bytes_of(held(model, optimizer)))

    def keep(*_: Any) -> None:
        count()
        kept.append(counted[-1])

    def count_twice(module: nn.Module, inputs: Any, output: Any) -> None:
        """Count now, and again in backward as it comes to this layer."""
        count()
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(count)

    hooks = [
        *(layer.register_forward_hook(count_twice) for layer in layers),
        *(block.register_full_backward_hook(count) for block in blocks_of(model)),
        optimizer.register_step_pre_hook(count),
        optimizer.register_step_post_hook(keep),
    ]
    step()
    for hook in hooks:
        hook.remove()
    return {"kept_bytes": kept[-1], "most_bytes": max(counted)}


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the weights, gradients and state that a process holds now, some of them more than once."""
    inner = inner_optimizer(optimizer)
    for p in [*model.parameters(), *(p for group in inner.param_groups for p in group["params"])]:
        yield p
        if p.grad is not None:
            yield p.grad
    for state in inner.state.values():
        yield from (x for x in state.values() if isinstance(x, Tensor))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of tensors, each counted once."""
    local = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in local}
    return sum(storages.values())


def rank_job(stage: int, num_blocks: int, num_steps: int) -> dict[str, Any]:
    model = decoder()
    data = batches(num_steps)
    with parallelize(model, adamw(model.parameters()), ParallelPlan(zero_stage=stage)) as parallel:
        ours = by_whet(parallel)
        theirs = by_hand(stage)
        losses = [(ours(ids), theirs(ids)) for ids in data[:2]]
        memory = held_bytes(model, parallel.optimizer, functools.partial(ours, data[0]))
        times: dict[str, list[float]] = {"whet": [], "by hand": []}
        order = random.Random(7)
        for _ in range(num_blocks):
            pair = [("whet", ours), ("by hand", theirs)]
            order.shuffle(pair)
            for name, step in pair:
                times[name].append(timed(step, data))
        return {"times": times, "memory": memory, "losses": losses}


def alone(num_blocks: int, num_steps: int) -> float:
    """Return the median seconds of a block in one process with a thread for each core that the processes had."""
    torch.set_num_threads(RANKS)
    model = decoder()
    optimizer = adamw(model.parameters())

    def step(ids: Tensor) -> None:
        loss_of(model, ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    times = []
    for number in range(num_blocks + 1):
        began = time.perf_counter()
        for ids in batches(num_steps):
            step(ids)
        if number:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def formula(stage: int, num_parameters: int) -> float:
    """Return the bytes that a process holds by the table of ZeRO, for float32 with Adam."""
    kept = [part / (RANKS if place >= len(PARTS) - stage else 1) for place, part in enumerate(PARTS)]
    return num_parameters * sum(kept)


def rows(num_blocks: int, num_steps: int) -> Iterator[dict[str, Any]]:
    count = sum(p.numel() for p in decoder().parameters())
    one = alone(num_blocks, num_steps)
    for stage in STAGES:
        found = on_ranks(rank_job, stage, num_blocks, num_steps)
        ratio, interval = paired_ratio(found["times"]["by hand"], found["times"]["whet"])
        median = statistics.median(found["times"]["whet"])
        yield {
            "stage": stage,
            "step_ms": 1e3 * median / num_steps,
            "tokens_per_s": ROWS * LENGTH * num_steps / median,
            "of_one_process": one / median,
            "of_by_hand": {"ratio": ratio, "ci95": list(interval)},
            "verdict": verdict(*interval, AIM),
            **found["memory"],
            "table_bytes": formula(stage, count),
            "loss_differs": max(abs(ours - theirs) / theirs for ours, theirs in found["losses"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    speed = Table(
        "ZeRO", "ms a step", "of one process", "of by hand", Column("95%", no_wrap=True), "aim", "loss differs"
    )
    memory = Table("ZeRO", "kept (MB)", "most (MB)", "by the table (MB)")
    found = []
    for row in rows(asked.blocks, asked.steps):
        found.append(row)
        low, high = row["of_by_hand"]["ci95"]
        speed.add_row(
            str(row["stage"]),
            f"{row['step_ms']:.1f}",
            f"{row['of_one_process']:.2f}",
            f"{row['of_by_hand']['ratio']:.3f}",
            f"{low:.3f}–{high:.3f}",
            row["verdict"],
            f"{row['loss_differs']:.0e}",
        )
        sizes = (row[name] for name in ("kept_bytes", "most_bytes", "table_bytes"))
        memory.add_row(str(row["stage"]), *(f"{size / 1e6:.1f}" for size in sizes))
    Console().print(speed, memory)
    command = f"python benchmarks/parallel.py --blocks {asked.blocks} --steps {asked.steps}"
    shape = {**SIZES, "rows": ROWS, "tokens": LENGTH}
    document = {**circumstances(command), "aim": AIM, "ranks": RANKS, "shape": shape, "rows": found}
    write_whole(asked.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
