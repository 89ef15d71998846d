"""What each plan of whet.parallelize costs beside the same training written by hand, and what each process holds.

    python benchmarks/parallel.py [--blocks 8] [--steps 4]      # writes docs/results/parallel.json

Two processes with one thread each train a decoder in blocks of steps, in turn by whet's plan and by hand on the same
engines of PyTorch, in an order that is drawn; the ratio of a pair of blocks is that of their times. The aim is 0.98 of
the hand-written one's throughput at least. One process with two threads makes the same steps beside it. Held is counted
by tensors, and compared with the table of ZeRO (Rajbhandari et al., 2020, arXiv:1910.02054, section 5) for float32 with
Adam: 4 bytes of a parameter, 4 of its gradient, 8 of the optimiser's state.
"""

import argparse
import functools
import gc
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from circumstances import circumstances
from rich.console import Console
from rich.table import Table
from torch import Tensor, distributed, nn

from whet.core.workload.blocks import blocks_of
from whet.files import write_whole
from whet.measure.isolate import RANK, RENDEZVOUS, WORLD_SIZE
from whet.measure.stats import paired_ratio
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder
from whet.parallel.division import inner_optimizer
from whet.parallel.parallelize import parallelize
from whet.parallel.plan import ParallelPlan

AIM, NEAR = 0.98, 0.05
RANKS = 2
RESULT = Path(__file__).parents[1] / "docs" / "results" / "parallel.json"
ROWS, LENGTH = 8, 128
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
STAGES = (0, 1, 2, 3)
Step = Callable[[Tensor], float]


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig.model_validate(SIZES))


def batches(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(SIZES["vocab_size"], (ROWS, LENGTH + 1), generator=generator) for _ in range(number)]


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


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


def by_whet(parallel: Any) -> Step:
    def step(ids: Tensor) -> float:
        summed = parallel.micro_batches(parallel.rows(ids))
        for part in summed:
            summed.backward(loss_of(parallel.model, part))
        parallel.clip_grad_norm_(1.0)
        parallel.optimizer.step()
        parallel.optimizer.zero_grad()
        found: float = summed.loss()
        return found

    return step


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> int:
    """Return the most bytes of weights, gradients and optimiser's state that a step holds, by tensors."""
    most = 0

    def count(*_: Any) -> None:
        nonlocal most
        kept = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
        kept += [
            x for entry in inner_optimizer(optimizer).state.values() for x in entry.values() if isinstance(x, Tensor)
        ]
        local = [x.to_local() if hasattr(x, "to_local") else x for x in kept]
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in local}
        most = max(most, sum(storages.values()))

    hooks = [
        *(block.register_full_backward_hook(count) for block in blocks_of(model)),
        optimizer.register_step_post_hook(count),
    ]
    step()
    for hook in hooks:
        hook.remove()
    gc.collect()
    return most


def timed(step: Step, ids: list[Tensor]) -> float:
    distributed.barrier()
    began = time.perf_counter()
    for one in ids:
        step(one)
    distributed.barrier()
    return time.perf_counter() - began


def rank_job(variables: dict[str, str], stage: int, num_blocks: int, num_steps: int, pipe: Any) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    model = decoder()
    data = batches(num_steps)
    with parallelize(model, adamw(model.parameters()), ParallelPlan(zero_stage=stage)) as parallel:
        ours = by_whet(parallel)
        theirs = by_hand(stage)
        losses = [(ours(ids), theirs(ids)) for ids in data[:2]]
        held = held_bytes(model, parallel.optimizer, functools.partial(ours, data[0]))
        times: dict[str, list[float]] = {"whet": [], "by hand": []}
        order = random.Random(7)
        for _ in range(num_blocks):
            pair = [("whet", ours), ("by hand", theirs)]
            order.shuffle(pair)
            for name, step in pair:
                times[name].append(timed(step, data))
        if parallel.is_first:
            pipe.send({"times": times, "held": held, "losses": losses})


def on_ranks(stage: int, num_blocks: int, num_steps: int) -> dict[str, Any]:
    """Return what the first of two processes measured."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as place:
        started = []
        for rank in range(RANKS):
            variables = {RANK: str(rank), WORLD_SIZE: str(RANKS), RENDEZVOUS: f"file://{place}/meeting"}
            one = context.Process(target=rank_job, args=(variables, stage, num_blocks, num_steps, theirs))
            one.start()
            started.append(one)
        found: dict[str, Any] = mine.recv()
        for one in started:
            one.join()
    return found


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
    parts = (4, 4, 8)  # of a parameter, its gradient, the optimiser's state
    divided = {0: 0, 1: 1, 2: 2, 3: 3}[stage]
    kept = [part / (RANKS if place >= len(parts) - divided else 1) for place, part in enumerate(parts)]
    return num_parameters * sum(kept)


def rows(num_blocks: int, num_steps: int) -> Iterator[dict[str, Any]]:
    count = sum(p.numel() for p in decoder().parameters())
    one = alone(num_blocks, num_steps)
    for stage in STAGES:
        found = on_ranks(stage, num_blocks, num_steps)
        ratio, interval = paired_ratio(found["times"]["by hand"], found["times"]["whet"])
        median = statistics.median(found["times"]["whet"])
        yield {
            "stage": stage,
            "step_ms": 1e3 * median / num_steps,
            "tokens_per_s": ROWS * LENGTH * num_steps / median,
            "of_one_process": one / median,
            "of_by_hand": ratio,
            "interval": list(interval),
            "held_bytes": found["held"],
            "table_bytes": formula(stage, count),
            "loss_differs": max(abs(ours - theirs) / theirs for ours, theirs in found["losses"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    table = Table(
        "ZeRO", "ms a step", "of one process", "of by hand", "95%", "held (MB)", "by the table", "loss differs"
    )
    found = []
    for row in rows(asked.blocks, asked.steps):
        found.append(row)
        table.add_row(
            str(row["stage"]),
            f"{row['step_ms']:.1f}",
            f"{row['of_one_process']:.2f}",
            f"{row['of_by_hand']:.3f}",
            "–".join(f"{end:.3f}" for end in row["interval"]),
            f"{row['held_bytes'] / 1e6:.1f}",
            f"{row['table_bytes'] / 1e6:.1f}",
            f"{row['loss_differs']:.0e}",
        )
    Console().print(table)
    command = f"python benchmarks/parallel.py --blocks {asked.blocks} --steps {asked.steps}"
    document = {**circumstances(command), "aim": AIM, "near": NEAR, "ranks": RANKS, "rows": found}
    write_whole(RESULT, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
