"""Record every recipe's trial for a few workloads, so that searches can be replayed against them.

    python benchmarks/search_tables.py [--only digits-cnn,docs-encoder]

A table holds a space of a few techniques, some of them with one choice of options, and what a trial of each recipe
found. Trials are those of `whet tune`, in an order drawn at random, so that a machine that drifts favours no technique.
An interrupted script goes on where it was. It writes docs/results/search_tables/WORKLOAD.json; a trial that other
processes disturbed is made again.
"""

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from circumstances import circumstances

from whet.core.recipe import Recipe
from whet.files import write_whole
from whet.measure.quiet import QuietWait
from whet.techniques import TABLE
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.asked import Asked
from whet.tuner.budget import Budget
from whet.tuner.goal import Goal
from whet.tuner.kind import Kind, Work
from whet.tuner.listener import Listener
from whet.tuner.model_kind import ModelKind
from whet.tuner.plan import complete
from whet.tuner.prepared_target import prepared
from whet.tuner.records import TrialRecord
from whet.tuner.space import ApplicableTechnique, Space
from whet.tuner.time_account import TimeAccount
from whet.tuner.training.kind import TrainingKind
from whet.tuner.training.space import COMPILE

TABLES = Path(__file__).parents[1] / "docs" / "results" / "search_tables"
_BUDGET_S, _TRIAL_S, _WAIT_S = 4 * 3600.0, 120.0, 900.0
_KEPT = {"number", "steps", "status", "rejected_for", "speedup", "peak_bytes", "seconds", "predicted"}

_ALL: Mapping[str, Sequence[Any]] = {}
_RUNTIMES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "inductor": {"engine": ("package",), "freezing": (True,), "max_autotune": (False,)},
    "openvino": {"precision": ("int8", "f32"), "preset": ("performance",), "smooth_quant": (False,), "keep": (0,)},
    "onnxruntime": {"precision": ("int8", "f32"), "mode": ("static",)},
    "threads": _ALL,
}
SPACES: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = {
    "digits-cnn": {"fuse_conv_bn": _ALL, "channels_last": _ALL, **_RUNTIMES},
    "docs-encoder": {
        "sdpa_attention": _ALL,
        "fuse_qkv": _ALL,
        **{name: _RUNTIMES[name] for name in ("openvino", "onnxruntime")},
    },
    "docs-gpt-training": {
        "chunked_loss": _ALL,
        "checkpointing": {"every": (1,), "keep": ("inputs",)},
        "adafactor": _ALL,
        "accumulation": {"num_parts": (2, 8)},
    },
    "digits-cnn-training": {
        "channels_last": _ALL,
        "fused_optimizer": _ALL,
        "optimizer_in_backward": _ALL,
        "allocator": _ALL,
        "threads": _ALL,
    },
    "benchmarks/packed_samples.py:build": {
        "channels_last": _ALL,
        "fused_optimizer": _ALL,
        "allocator": _ALL,
        "threads": _ALL,
        "prefetch": _ALL,
    },
}
"""The techniques of each table, with the values of their options that are tried; all of an option that is not named."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SPACES), help="names of workloads, with commas between them")
    for target in parser.parse_args().only.split(","):
        record(target)


def file_of(target: str) -> Path:
    """Return the file of a workload's table."""
    return TABLES / f"{Path(target.partition(':')[0]).stem}.json"


def space_of(table: Mapping[str, Any]) -> Space:
    """Return the space of a table."""
    entries = [ApplicableTechnique.model_validate(entry) for entry in table["techniques"]]
    if table["kind"] == "training":
        return Space(entries, TRAINING_TABLE, COMPILE, table["original_bytes"])
    return Space(entries, TABLE)


def restricted(entries: Sequence[ApplicableTechnique], chosen: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[Any]:
    """Return the chosen techniques, with the chosen values of their options."""
    found = []
    for entry in entries:
        if entry.technique not in chosen:
            continue
        options = {
            name: tuple(value for value in values if value in chosen[entry.technique].get(name, values))
            for name, values in entry.options.items()
        }
        variants = [v for v in entry.variants if all(v.step.options[name] in options[name] for name in options)]
        if not variants:
            sys.exit(f"The default of {entry.technique} is none of the values that SPACES names.")
        found.append(entry.model_copy(update={"options": options, "variants": tuple(variants)}))
    return found


def recipes(space: Space) -> list[Recipe]:
    """Return every recipe of a space."""
    found: dict[Any, Recipe] = {}
    choices = [(None, *entry.steps) for entry in space.techniques.values()]
    for chosen in itertools.product(*choices):
        steps = [step for step in chosen if step is not None]
        if steps and all(space.compatible(steps[:i], step) for i, step in enumerate(steps)):
            recipe = complete(space, steps)
            found[recipe.key] = recipe
    return list(found.values())


@contextlib.contextmanager
def _examined(target: str) -> Iterator[Kind]:
    """Yield the kind of a target, examined."""
    is_training = target.endswith(("-training", ":build"))
    kind = (TrainingKind if is_training else ModelKind)(Asked(Goal(), _BUDGET_S), prepared(target))
    budget = Budget(_BUDGET_S)
    with kind.at_work(Work(budget, TimeAccount(budget.clock), QuietWait(wait_s=_WAIT_S), Listener())):
        kind.examine()
        kind.measure_original()
        yield kind


def record(target: str) -> None:
    """Try every recipe of a workload's table that has no record yet."""
    path = file_of(target)
    with _examined(target) as kind, tempfile.TemporaryDirectory(prefix="whet-table-") as scratch:
        here = circumstances(f"python benchmarks/search_tables.py --only {target}")
        table = json.loads(path.read_bytes()) if path.is_file() else {**here, "records": []}
        if any(table[key] != here[key] for key in ("machine", "versions")):
            sys.exit(f"{path} was begun on another machine or with other versions; remove it to record it anew.")
        table |= {
            "target": target,
            "kind": kind.word,
            "original_bytes": kind.facts.peak_bytes if kind.word == "training" else 0,
            "techniques": [e.model_dump(mode="json") for e in restricted(kind.facts.applicable, SPACES[target])],
        }
        write_whole(path, json.dumps(table, indent=1) + "\n")  # the profile's bounds are those of this code
        space = space_of(table)
        known = [TrialRecord.model_validate(found) for found in table["records"]]
        left = [recipe for recipe in recipes(space) if recipe.key not in {found.key for found in known}]
        random.Random(0).shuffle(left)
        kind.begin_search(Path(scratch), known)
        while left:
            recipe = left.pop(0)
            began = time.perf_counter()
            found = _tried(kind, len(known), recipe)
            if found.busy:  # later, when the machine may be quiet
                left.append(recipe)
                continue
            known.append(found)
            kind.tidy(known)
            table["records"] = [tried.model_dump(mode="json", include=_KEPT) for tried in known]
            write_whole(path, json.dumps(table, indent=1) + "\n")
            speedup = f"{found.speedup:.2f}x" if found.speedup else "-"
            print(
                f"{target} {len(known)}/{len(known) + len(left)} {found.status} {speedup} "
                f"{time.perf_counter() - began:.1f} s {recipe} {found.reason[:60]}",
                flush=True,
            )


def _tried(kind: Kind, number: int, recipe: Recipe) -> TrialRecord:
    """Try a recipe, once more where other processes disturbed it."""
    patience = kind.work.patience
    found: TrialRecord = patience.measure(lambda: kind.attempt(number, recipe, _TRIAL_S), lambda tried: tried.busy)
    if found.busy and patience.has_run_out:
        sys.exit(f"The table of {kind.target} is not whole: {found.busy}; start the script again.")
    return found


if __name__ == "__main__":
    main()
