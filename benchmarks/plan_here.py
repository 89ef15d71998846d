"""Compare what whet plan predicts for this machine with steps that two and four of its processes make.

    python benchmarks/plan_here.py [--steps 12]      # writes docs/results/plan_here.json

Processes with one thread each train the decoder of decoder_on_ranks.py by whet.parallelize with a fused AdamW, in each
stage of ZeRO. The time of a step of two processes is the median; that of four on fewer cores is no figure. The memory
is the peak of the first process beside what it held before it made the model, from outside of PyTorch (the resident
set). It is measured twice: with blocks of 64 KiB and more returned to the system when they are freed, which is what
tensors take and what is predicted, and as malloc does by itself, which keeps much of what was freed.

The prediction knows this machine's limits and links as whet limits --links measured them, and nothing of the run.
--try runs on a busy machine too and writes nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch.distributed.fsdp  # what is imported is no part of the memory of a training
from circumstances import circumstances
from decoder_on_ranks import (
    LENGTH,
    PARTS,
    RANKS,
    ROWS,
    SIZES,
    STAGES,
    batches,
    by_whet,
    decoder,
    on_ranks,
    timed,
)
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from torch import nn

from whet.files import write_whole
from whet.measure import load
from whet.measure.memory import TakenMemory, begin_peak
from whet.parallel.parallelize import parallelize
from whet.parallel.plan import ParallelPlan
from whet.planner import predict
from whet.planner.layout import Bytes, Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.this_machine import this_machine

NUMBERS = 2, 4  # processes
RESULT = Path(__file__).parents[1] / "docs" / "results" / "plan_here.json"
TARGET = 0.15  # how far a prediction may be off
WARM_UP = 3  # steps, in which the optimiser makes its state and DDP its buckets
RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "MALLOC_TRIM_THRESHOLD_": str(2**17)}  # glibc: mallopt(3)


def shape() -> ModelShape:
    """Return the decoder's sizes in the planner's words."""
    return ModelShape(
        name="the decoder of decoder_on_ranks.py",
        num_layers=SIZES["num_hidden_layers"],
        hidden_size=SIZES["hidden_size"],
        intermediate_size=SIZES["intermediate_size"],
        num_heads=SIZES["num_attention_heads"],
        num_kv_heads=SIZES["num_key_value_heads"],
        head_size=SIZES["hidden_size"] // SIZES["num_attention_heads"],
        vocab_size=SIZES["vocab_size"],
    )


def layout(stage: int, ranks: int) -> Layout:
    """Return how whet.parallelize lays the training out in a stage of ZeRO."""
    parameter, gradient, state = PARTS
    return Layout(
        replicate=1 if stage else ranks,
        shard=ranks if stage else 1,
        zero_stage=stage,
        micro_batch_size=ROWS // ranks,
        precision="float32",
        bytes=Bytes(parameter=parameter, gradient=gradient, state=state),
    )


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def rank_job(stage: int, num_steps: int) -> dict[str, Any]:
    data = batches(num_steps)
    warm_up_optimizer()
    begin_peak()
    taken = TakenMemory()
    model = decoder()
    with parallelize(model, adamw(model.parameters()), ParallelPlan(zero_stage=stage)) as parallel:
        step = by_whet(parallel)
        for ids in data[:WARM_UP]:
            step(ids)
        begin_peak()
        with load.Observed() as seen:
            times = [timed(step, [ids]) for ids in data]
        busy = seen.load.cause_beyond(load.MAX_WAITED_LONG)
        return {"step_s": statistics.median(times), "peak_bytes": taken.peak_bytes(), "busy": busy}


def warm_up_optimizer() -> None:
    """Let PyTorch import what its optimisers need."""
    model = nn.Linear(1, 1)
    optimizer = adamw(model.parameters())
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def returning(stage: int, num_steps: int, ranks: int) -> dict[str, Any]:
    """Run the ranks with a malloc that returns what is freed to the system."""
    os.environ.update(RETURNED)
    try:
        return on_ranks(rank_job, stage, num_steps, ranks=ranks)
    finally:
        for name in RETURNED:
            del os.environ[name]


def rows(num_steps: int) -> Iterator[dict[str, Any]]:
    work = Work(global_batch_size=ROWS, sequence_length=LENGTH)
    for ranks, stage in product(NUMBERS, STAGES):
        cluster = this_machine(ranks)
        found = on_ranks(rank_job, stage, num_steps if ranks == RANKS else WARM_UP, ranks=ranks)
        tensors = returning(stage, WARM_UP, ranks)["peak_bytes"]
        predicted = predict.predict(shape(), cluster, layout(stage, ranks), work)
        yield {
            "ranks": ranks,
            "stage": stage,
            "busy": found["busy"],
            **({"step_s": found["step_s"]} if ranks == RANKS else {}),
            "peak_bytes": tensors,
            "kept_bytes": found["peak_bytes"],
            "predicted_step_s": predicted.step_s.model_dump(),
            "predicted_bytes": predicted.memory_total.model_dump(),
            "parts_s": predicted.step.model_dump(),
            "parts_bytes": predicted.memory.model_dump(),
            **({"step_differs": predicted.step_s.value / found["step_s"] - 1} if ranks == RANKS else {}),
            "memory_differs": predicted.memory_total.value / tensors - 1,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--try", action="store_true", dest="is_trial", help="measure whatever else runs; write nothing")
    asked = parser.parse_args()
    if asked.steps < WARM_UP:
        parser.error(f"--steps takes {WARM_UP} or more")
    os.environ.update(load.environment())  # a rank is no other process to another one
    with contextlib.nullcontext() if asked.is_trial else quiet_machine():
        found = list(rows(asked.steps))
    table = Table("ranks", "ZeRO", "ms a step", "predicted", "off", "MB", "kept", "predicted", "off", "disturbed")
    for row in found:
        times = ["", "", ""]
        if "step_s" in row:
            milliseconds = [1e3 * row["step_s"], 1e3 * row["predicted_step_s"]["value"]]
            times = [*(f"{one:.0f}" for one in milliseconds), f"{row['step_differs']:+.0%}"]
        sizes = [row["peak_bytes"], row["kept_bytes"], row["predicted_bytes"]["value"]]
        table.add_row(
            *(str(row["ranks"]), str(row["stage"])),
            *times,
            *(f"{one / 1e6:.0f}" for one in sizes),
            f"{row['memory_differs']:+.0%}",
            row["busy"] or "no",
        )
    Console().print(table)
    if not asked.is_trial:
        command = f"python benchmarks/plan_here.py --steps {asked.steps}"
        write_whole(RESULT, json.dumps({**circumstances(command), "target": TARGET, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
