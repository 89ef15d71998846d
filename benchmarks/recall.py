"""Train small models for tasks of recall, and test how far back they remember.

    python benchmarks/recall.py [--tasks recall passkey copy mqar] [--arms bank ...] [--work DIR] [--quick]

The arms: segments of attention alone (none), with a bank of slots, with a memory that learns at test time, full
attention, and for the task `recall` titans-pytorch's Memory as Context, where it is installed. All have as many
parameters and read the same texts, at most 3.5 million tokens. The loss is taken at answers alone, and gradients go
back through all segments. Texts grow from 2 to 16 segments as a model learns them, and those of the tests are longer.
The learning rate is the best of three, by texts that are not in the tests, with the first seed; two more seeds follow.

Each training is one process with one thread, as many at a time as there are cores, and leaves one file in the work
directory, which is kept with the results. What is there already is not trained again, so the script goes on where it
was stopped, on any machine. Times play no part, so the machine need not be quiet.

Writes docs/results/recall.json; benchmarks/results.py makes the table. --quick trains one seed at one learning
rate on 200,000 tokens, and writes nothing but its work directory.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from recall_models import ARMS, TITANS, titans_is_installed
from recall_tables import recall_lines
from recall_training import TASKS, TOKENS, Run, train_and_test

from whet.files import write_whole
from whet.measure.cores import allowed_cores
from whet.measure.machine import describe

RESULTS = Path(__file__).parents[1] / "docs" / "results"
LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2)
_QUICK_TOKENS = 200_000


def main() -> None:
    arguments = _arguments()
    if arguments.run:
        _work(Run(**json.loads(arguments.run)), arguments.work)
        return
    arms = [arm for arm in arguments.arms if arm != TITANS or titans_is_installed()]
    absent = [arm for arm in arguments.arms if arm not in arms]
    if absent:
        print("titans-pytorch is not installed, and is left out: pip install titans-pytorch", file=sys.stderr)
    pairs = [(task, arm) for task in arguments.tasks for arm in arms if arm != TITANS or task == "recall"]
    tokens = _QUICK_TOKENS if arguments.quick else TOKENS
    rates = LEARNING_RATES[1:2] if arguments.quick else LEARNING_RATES
    _train_all([Run(*pair, SEEDS[0], lr, tokens) for pair in pairs for lr in rates], arguments)
    best = {pair: _best_rate([Run(*pair, SEEDS[0], lr, tokens) for lr in rates], arguments.work) for pair in pairs}
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    finals = [Run(*pair, seed, best[pair], tokens) for pair in pairs for seed in seeds]
    _train_all(finals, arguments)
    versions = {"titans-pytorch": version("titans-pytorch")} if TITANS in arms else {}
    report = {
        **circumstances("python benchmarks/recall.py", versions),
        "tokens": tokens,
        "learning_rates": list(rates),
        "tasks": {name: {"chance": TASKS[name].chance, "says": TASKS[name].chance_says} for name in arguments.tasks},
        "absent": absent,
        "runs": [_found(run, arguments.work) for run in finals],
    }
    print("\n".join(recall_lines(report)))
    if not arguments.quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / "recall.json", json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=RESULTS / "recall", help="where each training leaves its file")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--jobs", type=int, default=len(allowed_cores()), help="trainings at a time")
    parser.add_argument("--quick", action="store_true", help="try the script; write nothing to docs")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(run: Run, work: Path) -> None:
    """Be a process that trains one model."""
    torch.set_num_threads(1)
    found = {**train_and_test(run), "chip": describe().chip}
    write_whole(_path(run, work), json.dumps(found, indent=1) + "\n")


def _train_all(runs: Iterable[Run], arguments: argparse.Namespace) -> None:
    """Train what has left no file yet, some at a time."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    missing = [run for run in runs if not _path(run, arguments.work).is_file()]
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, run in enumerate(pool.map(lambda run: _train(run, arguments.work), missing), 1):
            found = _found(run, arguments.work)
            left = (len(missing) - number) * (time.monotonic() - began) / number / 60
            share = f"{found['chosen_by']:.1%} right after {found['tokens_read']:,} tokens, {found['seconds']:.0f} s"
            print(f"{number}/{len(missing)} {run.name}: {share}; {left:.0f} min left", flush=True)


def _train(run: Run, work: Path) -> Run:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--work", str(work), "--run", json.dumps(vars(run))]
    subprocess.run(command, check=True, env=one_thread)
    return run


def _best_rate(runs: list[Run], work: Path) -> float:
    """Return the learning rate of the run that answers best; of equal ones, the one that read the fewest tokens."""

    def merit(run: Run) -> tuple[float, int]:
        found = _found(run, work)
        return found["chosen_by"], -found["tokens_read"]

    return max(runs, key=merit).lr


def _found(run: Run, work: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_path(run, work).read_text(encoding="utf-8"))
    return found


def _path(run: Run, work: Path) -> Path:
    return work / f"{run.name}-{run.tokens}.json"


if __name__ == "__main__":
    main()
