"""Compare what whet plan predicts for this machine with steps that two and four of its processes make.

    python benchmarks/plan_here.py [--steps 12]      # writes docs/results/plan_here.json

Processes with one thread each train the decoder of decoder_on_ranks.py by whet.parallelize, in each stage of ZeRO.
The time of a step of two processes is the median; that of four on fewer cores is no figure. The memory is the peak of
the first process beside what it held before it made the model, from outside of PyTorch (the resident set). The
prediction knows this machine's limits and links as whet limits --links measured them, and nothing of the run. Run it on
a quiet machine: a busy one disturbs both.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from circumstances import circumstances
from decoder_on_ranks import (
    LENGTH,
    PARTS,
    RANKS,
    ROWS,
    SIZES,
    STAGES,
    adamw,
    batches,
    by_whet,
    decoder,
    on_ranks,
    timed,
)
from rich.console import Console
from rich.table import Table

from whet.files import write_whole
from whet.measure.load import MAX_WAITED_LONG, Observed
from whet.measure.memory import TakenMemory, begin_peak
from whet.parallel.parallelize import parallelize
from whet.parallel.plan import ParallelPlan
from whet.planner import predict
from whet.planner.layout import Bytes, Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.this_machine import this_machine

NUMBERS = 2, 4  # processes
RESULT = Path(__file__).parents[1] / "docs" / "results" / "plan_here.json"
WARM_UP = 3  # steps, in which the optimiser makes its state and DDP its buckets


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


def rank_job(stage: int, num_steps: int) -> dict[str, Any]:
    data = batches(num_steps)
    begin_peak()
    taken = TakenMemory()
    model = decoder()
    with parallelize(model, adamw(model.parameters()), ParallelPlan(zero_stage=stage)) as parallel:
        step = by_whet(parallel)
        for ids in data[:WARM_UP]:
            step(ids)
        begin_peak()
        with Observed() as seen:
            times = [timed(step, [ids]) for ids in data]
        busy = seen.load.cause_beyond(MAX_WAITED_LONG)
        return {"step_s": statistics.median(times), "peak_bytes": taken.peak_bytes(), "busy": busy}


def rows(num_steps: int) -> Iterator[dict[str, Any]]:
    work = Work(global_batch_size=ROWS, sequence_length=LENGTH)
    for ranks, stage in product(NUMBERS, STAGES):
        cluster = this_machine(ranks)
        found = on_ranks(rank_job, stage, num_steps, ranks=ranks)
        predicted = predict.predict(shape(), cluster, layout(stage, ranks), work)
        yield {
            "ranks": ranks,
            "stage": stage,
            **found,
            "predicted_step_s": predicted.step_s.model_dump(),
            "predicted_bytes": predicted.memory_total.model_dump(),
            "parts_s": predicted.step.model_dump(),
            "parts_bytes": predicted.memory.model_dump(),
            "step_differs": predicted.step_s.value / found["step_s"] - 1,
            "memory_differs": predicted.memory_total.value / found["peak_bytes"] - 1,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    if asked.steps < WARM_UP:
        parser.error(f"--steps takes {WARM_UP} or more")
    table = Table(
        "ranks", "ZeRO", "ms a step", "predicted", "differs", "peak (MB)", "predicted", "differs", "disturbed"
    )
    found = []
    for row in rows(asked.steps):
        found.append(row)
        times = (f"{1e3 * row['step_s']:.1f}", f"{1e3 * row['predicted_step_s']['value']:.1f}")
        table.add_row(
            str(row["ranks"]),
            str(row["stage"]),
            *((*times, f"{row['step_differs']:+.0%}") if row["ranks"] == RANKS else ("", "", "")),
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['predicted_bytes']['value'] / 1e6:.1f}",
            f"{row['memory_differs']:+.0%}",
            "yes" if row["busy"] else "no",
        )
    Console().print(table)
    command = f"python benchmarks/plan_here.py --steps {asked.steps}"
    write_whole(RESULT, json.dumps({**circumstances(command), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
