"""What pruning with fine-tuning leaves of the built-in models: operations, quality, size and time.

    python benchmarks/compression.py [--targets digits-cnn docs-gpt] [--kept DIR] [--prepare]

Each target is pruned by the technique of whet tune that fits it, and trained further by the training that it came from.
Operations are those of one call, as PyTorch's FlopCounterMode counts them. Quality is that of the workload's held-out
data. Size is that of the artefacts of the original and of what is left, in the same format. The times are those of the
two models as they are, without any other technique, in pairs of processes that take turns (whet.compare). --prepare
only trains, and keeps the weights in DIR for a later call, which then measures alone.

The goal: half of the operations at most, and 1 % of the quality at most. Writes docs/results/compression.json;
benchmarks/results.py makes the table.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances

import whet
from whet.core.recipe import Step
from whet.core.signature import FlatModel
from whet.core.workload import ExaminedWorkload, examine, measure_score
from whet.files import size_bytes, write_whole
from whet.techniques.mechanisms.pruning.cost import cost_of
from whet.techniques.pruned import call_of
from whet.techniques.technique import Candidate
from whet.tuner.build import build
from whet.workloads import resolve
from whet.workloads.target_name import with_training

GOAL = {"flops": 0.5, "drop": 0.01}
RESULT = Path(__file__).parents[1] / "docs" / "results" / "compression.json"
STEPS = {
    "digits-cnn": Step(technique="prune_channels", options={"keep": 0.5, "steps": 100}),
    "docs-gpt": Step(technique="prune_decoder", options={"keep": 0.5, "steps": 300}),
}


def examined_target(name: str, kept: Path) -> ExaminedWorkload:
    workload = resolve(with_training(name, f"{name}-training"))
    return dataclasses.replace(examine(workload), kept_in=kept / name)


def one_target(name: str, kept: Path, *, prepares: bool) -> dict[str, Any]:
    examined = examined_target(name, kept)
    step = STEPS[name]
    began = time.monotonic()
    candidate = build(examined, [step])
    print(f"{name}: pruned and trained in {time.monotonic() - began:.0f} s", flush=True)
    workload, call = examined.workload, call_of(examined)
    assert isinstance(candidate.module, FlatModel)
    small = candidate.module.model
    quality = workload.quality
    assert quality is not None
    assert examined.score is not None
    score = measure_score(quality, small).value
    before, after = cost_of(workload.model, call), cost_of(small, call)
    row: dict[str, Any] = {
        "target": name,
        "recipe": str(step),
        "flops": [before.flops, after.flops],
        "parameters": [before.num_parameters, after.num_parameters],
        "quality_name": quality.name,
        "quality": [examined.score, score],
        "drop": quality.drop(examined.score, score),
        "bytes": _sizes(examined, candidate),
    }
    print(json.dumps(row), flush=True)
    if not prepares:
        row |= _compared(workload, dataclasses.replace(workload, model=small, name=f"{name}, pruned"))
    return row


def _sizes(examined: ExaminedWorkload, candidate: Candidate) -> list[int]:
    with tempfile.TemporaryDirectory() as place:
        return [
            size_bytes(one.save(Path(place) / name))
            for name, one in (("old", Candidate.original(examined)), ("new", candidate))
        ]


def _compared(old: whet.Workload, new: whet.Workload) -> dict[str, Any]:
    bare = [dataclasses.replace(one, training=None) for one in (old, new)]
    claim = whet.compare(*bare)
    assert claim.ratio is not None and claim.ci95 is not None, claim.failure
    return {"ratio": claim.ratio, "ci95": list(claim.ci95), "verdict": str(claim.verdict), "pairs": claim.num_pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--kept", type=Path, help="where trained weights are kept; by default nowhere")
    parser.add_argument("--prepare", action="store_true", help="train only, and write nothing but the weights")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        kept = options.kept or Path(place)
        rows = [one_target(name, kept, prepares=options.prepare) for name in options.targets]
    if not options.prepare:
        command = f"python benchmarks/compression.py --targets {' '.join(options.targets)}"
        write_whole(RESULT, json.dumps({**circumstances(command), "goal": GOAL, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
