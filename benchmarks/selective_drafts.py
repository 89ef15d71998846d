"""Time what drafts and snapshots cost a state-space model of 130 million parameters, with int8 weights.

    python benchmarks/selective_drafts.py [--repeats 25] [--trial]

Weights are random. All steps are of one sequence: one token; five tokens of a prompt; one token and four drafts, of
which the next step keeps none or all. A step after accepted drafts takes them into the states again before its own
tokens. A snapshot is one copy of the sequence's states. The kinds take turns, and each has the median of its times.

Writes docs/results/selective_drafts.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, and writes nothing.
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circumstances import circumstances
from kept_pages import keep_pages
from quietly import quiet_machine
from scan_tables import draft_lines
from selective_models import MODELS

from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.measure.machine import describe
from whet.models.selective import SelectiveConfig
from whet.models.selective.files import weight_shapes
from whet.models.selective.native import NativeSelective
from whet.models.step import Allocation, StepBatch

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NUM_DRAFTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    keep_pages()
    with contextlib.nullcontext() if arguments.trial else quiet_machine():
        rows = [_measured(name, given, arguments.repeats) for name, given in MODELS.items()]
    command = f"python benchmarks/selective_drafts.py --repeats {arguments.repeats}"
    report = {**circumstances(command), "build": library().isa, "num_drafts": NUM_DRAFTS, "rows": rows}
    print("\n".join(draft_lines(report)))
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / f"selective_drafts.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _measured(name: str, given: dict[str, Any], repeats: int) -> dict[str, Any]:
    config = SelectiveConfig.model_validate(given)
    generator = torch.Generator().manual_seed(0)
    weights = {key: 0.02 * torch.randn(shape, generator=generator) for key, shape in weight_shapes(config).items()}
    model = NativeSelective(config, weights, library(), kind=Kind.S8)
    model.allocate(Allocation(num_states=4, num_snapshots=1, num_drafts=NUM_DRAFTS))
    # Of each kind: tokens of a step, those of them that are settled, and those that the next step keeps.
    kinds = {"one token": (1, 1, 1), "five tokens of a prompt": (5, 5, 5), "none": (5, 1, 1), "all": (5, 1, 5)}
    times: dict[str, list[float]] = {kind: [] for kind in [*kinds, "snapshot"]}
    places = dict.fromkeys(kinds, 0)
    names = list(times)
    for i in range(repeats + 5):
        for kind in names[i % len(names) :] + names[: i % len(names)]:  # each is the first as often as the others
            if kind == "snapshot":
                times[kind].append(_seconds(lambda: model.copy_state(0, 4)))
                continue
            num_tokens, num_settled, num_kept = kinds[kind]
            batch = _batch(names.index(kind), places[kind], num_tokens, num_settled)
            times[kind].append(_seconds(lambda batch=batch: model.step(batch)))  # type: ignore[misc]
            places[kind] += num_kept
    return {
        "model": name,
        "state_bytes": model.bytes_per_state,
        "draft_bytes": model.bytes_per_draft,
        "ms": {kind: 1e3 * statistics.median(found[5:]) for kind, found in times.items()},
    }


def _batch(row: int, begin: int, num_tokens: int, num_settled: int) -> StepBatch:
    draw = np.random.default_rng(begin)
    return StepBatch(
        token_ids=draw.integers(0, 50_000, num_tokens, dtype=np.int32),
        positions=np.arange(begin, begin + num_tokens, dtype=np.int32),
        query_start=np.array([0, num_tokens], np.int32),
        context_len=np.array([begin + num_tokens], np.int32),
        settled_len=np.array([begin + num_settled], np.int32),
        block_tables=np.zeros((1, 0), np.int32),
        state_rows=np.array([row], np.int32),
        logit_rows=np.arange(num_tokens, dtype=np.int32)[-num_tokens + num_settled - 1 :],
    )


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
