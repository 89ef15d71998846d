"""What `whet tune` makes of a training run beside its peers, in one run, in pairs.

    python benchmarks/train_peers.py --peers-python PEERS/bin/python [--recipe DIR --memory-recipe DIR] [--quick]

The peers have an environment of their own:

    python -m venv PEERS
    PEERS/bin/pip install torch transformers accelerate lightning       # the CPU build of torch that whet uses too

A Llama of 34 million parameters is trained on batches of 8 x 256 tokens (train_peers_model.py): by hand in several
ways, by Hugging Face's Trainer, by Lightning, and by a loop with `whet.prepare`. `whet tune` finds the recipes within
--budget, one for throughput and one for memory, unless they are given. Each contender lives in a process of its own
(train_peers_worker.py), which is idle but for its turn. Round after round, each makes a few steps, in random order; a
pair is two contenders in one round. Ratios are geometric means over the rounds of all sets, with their 95 % interval.
Memory is the peak during these steps, above what was resident after the imports.

Then whet's techniques are measured one on top of the other (--ladder), against the plain loop.

Writes docs/results/train_peers.MACHINE.json and prints the tables. The whole takes about 20 minutes on 2 quiet cores,
--quick about 5. --tiny only shows that everything runs: it takes a tiny model, does not wait for quiet, and writes
nothing.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from circumstances import circumstances
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from train_peers_model import SHAPE, TINY, VARIABLE
from train_peers_worker import BY_HAND, LIGHTNING, TRAINER

from whet.core.recipe import Recipe, Step
from whet.errors import WhetError
from whet.files import write_whole
from whet.measure.machine import describe
from whet.measure.stats import paired_ratio
from whet.tuner.tuning import tune

WHET, SMALL = "whet", "whet, for memory"
PEERS = (*BY_HAND, TRAINER, LIGHTNING)
HANDMADE = tuple(name for name in BY_HAND if name != "fp32")
LADDER = "autocast,product_attention,compile,chunked_loss,accumulation,adafactor"
MOST_TIME = 1.3  # of the fastest's, for the recipe for memory
_READY_S = 600.0

Measured = dict[str, list[dict[str, float]]]


def main() -> None:
    arguments = _arguments()
    os.environ[VARIABLE] = json.dumps(TINY if arguments.tiny else SHAPE)
    with tempfile.TemporaryDirectory(prefix="whet-train-peers-") as scratch:
        recipes = _recipes(arguments, Path(scratch))
        contenders = [*(arguments.peers.split(";") if arguments.peers else PEERS), *recipes]
        found: Measured = {name: [] for name in contenders}
        for number in range(arguments.sets):
            one = _one_set(contenders, recipes, arguments, number)
            for name in one:
                found[name] += one[name]
        rungs = _ladder(arguments.ladder.split(","), Path(scratch), arguments) if arguments.ladder else []
        report = _report(found, recipes, rungs, arguments)
    if not arguments.tiny:
        path = HERE.parent / "docs" / "results" / f"train_peers.{describe().fingerprint}.json"
        write_whole(path, json.dumps(report, indent=1) + "\n")
    _show(report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter with accelerate and lightning")
    parser.add_argument("--recipe", type=Path, help="for throughput; found by whet tune, if not given")
    parser.add_argument("--memory-recipe", type=Path, help="for memory; found by whet tune, if not given")
    parser.add_argument("--budget", type=float, help="seconds for each tuning (default: 240; 60 with --quick)")
    parser.add_argument("--sets", type=int, help="groups of fresh processes (default: 2; 1 with --quick)")
    parser.add_argument("--rounds", type=int, help="in each set (default: 6; 5 with --quick)")
    parser.add_argument("--steps", type=int, default=3, help="of each contender in a round")
    parser.add_argument("--ladder", help=f"techniques, comma-separated; '' for none (default: {LADDER})")
    parser.add_argument("--peers", help=f"some of them, with semicolons (default: {'; '.join(PEERS)})")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="only show that it runs")
    arguments = parser.parse_args()
    short = arguments.quick or arguments.tiny
    for name, usual, quick in (("budget", 240.0, 60.0), ("sets", 2, 1), ("rounds", 6, 5), ("ladder", LADDER, "")):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if short else usual)
    if unknown := set((arguments.peers or PEERS[0]).split(";")) - set(PEERS):
        parser.error(f"no peer {', '.join(unknown)}; there are: {'; '.join(PEERS)}")
    if arguments.rounds < 2 or arguments.steps < 1 or arguments.sets < 1:
        parser.error("--rounds must be 2 or more, --sets and --steps 1 or more")
    return arguments


def _recipes(arguments: argparse.Namespace, scratch: Path) -> dict[str, Path]:
    """Return where each recipe lies, by contender."""
    found = dict[str, Path]()
    for name, given, objective in ((WHET, arguments.recipe, "throughput"), (SMALL, arguments.memory_recipe, "memory")):
        found[name] = given or scratch / objective
        if given is None:
            result = tune(
                f"{HERE / 'train_peers_model.py'}:workload",
                objective=objective,
                max_slowdown=MOST_TIME / _speedup(found[WHET]) if objective == "memory" else MOST_TIME,
                budget_s=arguments.budget,
                out=found[name],
                on_busy="go-on" if arguments.tiny else "wait",
            )
            print(f"{objective}: {result.sentence}", flush=True)
        Recipe.read(found[name]).checked_for("training")
    return found


def _speedup(directory: Path) -> float:
    """Return how many times faster than the plain loop a recipe was proved to be."""
    evidence = Recipe.read(directory).evidence
    return 1.0 if evidence is None else evidence.speedup


def _quiet(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if arguments.tiny else quiet_machine()


def _one_set(contenders: Sequence[str], recipes: dict[str, Path], arguments: argparse.Namespace, seed: int) -> Measured:
    """Start a process for each contender, one after the other, then ask them in turn."""
    order = random.Random(seed)
    workers: dict[str, subprocess.Popen[str]] = {}
    found: Measured = {}
    try:
        for name in order.sample(contenders, len(contenders)):
            workers[name] = _start(name, recipes.get(name), arguments)
            if _answer(workers[name]) != "ready":
                print(f"{name} ended with {workers[name].wait()}; see above", file=sys.stderr, flush=True)
                del workers[name]
        found = {name: [] for name in workers}
        with _quiet(arguments):
            for _ in range(arguments.rounds):
                for name in order.sample(list(workers), len(workers)):
                    found[name].append(_asked(workers[name], arguments.steps))
    finally:
        for worker in workers.values():
            worker.communicate("stop\n")
    return found


def _start(name: str, recipe: Path | None, arguments: argparse.Namespace) -> "subprocess.Popen[str]":
    python = arguments.peers_python if recipe is None else sys.executable
    command = [str(python), str(HERE / "train_peers_worker.py"), name, *([] if recipe is None else [str(recipe)])]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _asked(worker: "subprocess.Popen[str]", steps: int) -> dict[str, float]:
    assert worker.stdin is not None
    worker.stdin.write(f"go {steps}\n")
    worker.stdin.flush()
    answer: dict[str, float] = json.loads(_answer(worker))
    return answer


def _answer(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("answer "):
            return line.removeprefix("answer ").strip()
    return "gone"


def _ladder(names: Sequence[str], scratch: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure techniques one on top of the other. A rung that does not apply is left out, with its reason."""
    rungs: list[dict[str, Any]] = [{"what": "the plain loop", "steps": []}]
    paths = {}
    for name in names:
        steps = [*rungs[-1]["steps"], name]
        rungs.append({"what": f"+ {name}", "steps": steps})
    for number, rung in enumerate(rungs):
        paths[rung["what"]] = scratch / f"rung-{number}.toml"
        recipe = Recipe(kind="training", steps=[Step(technique=technique) for technique in rung["steps"]])
        recipe.write(paths[rung["what"]])
    found = _one_set(list(paths), paths, arguments, 0)
    for rung in rungs:
        rows = found.get(rung["what"])
        rung |= {"failed": True} if not rows else _figures(rows)
    return rungs


def _figures(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    sizes = json.loads(os.environ[VARIABLE])
    step_s = statistics.median(row["step_s"] for row in rows)
    return {
        "step_s": step_s,
        "tokens_per_s": sizes["rows"] * sizes["tokens"] / step_s,
        "peak_bytes": statistics.median(row["peak_bytes"] for row in rows),
    }


def _ratio(found: Measured, old: str, new: str, figure: str) -> dict[str, Any]:
    """Return how many times as large a figure of `old` is as that of `new`."""
    ratio, ci95 = paired_ratio([row[figure] for row in found[old]], [row[figure] for row in found[new]])
    return {"ratio": ratio, "ci95": list(ci95), "num_rounds": len(found[old])}


def _claims(found: Measured) -> list[dict[str, Any]]:
    """Judge each goal by its whole interval; only goals whose two sides were measured."""

    def fastest(names: Sequence[str]) -> str:
        there = [name for name in names if found.get(name)]
        return min(there, key=lambda name: statistics.median(row["step_s"] for row in found[name]), default="")

    best, first = fastest(HANDMADE), fastest([name for name in found if name != SMALL])
    wanted = (
        ("the best by hand", best, WHET, "step_s", 1.05, True),
        ("HF Trainer", TRAINER, WHET, "step_s", 1.4, True),
        ("Lightning", LIGHTNING, WHET, "step_s", 1.3, True),
        (
            "memory: the peak, of the fastest's",
            SMALL,
            first,
            "peak_bytes",
            0.5,
            False,
        ),
        ("memory: the time, of the fastest's", SMALL, first, "step_s", 1.3, False),
    )
    claims = []
    for what, old, new, figure, goal, is_least in wanted:
        if found.get(old) and found.get(new):
            claim = _ratio(found, old, new, figure)
            low, high = claim["ci95"]
            reached, missed = (low >= goal, high < goal) if is_least else (high <= goal, low > goal)
            word = "reached" if reached else "missed" if missed else "open"
            sign = ">=" if is_least else "<="
            claims.append({"what": what, "of": [old, new], **claim, "goal": f"{sign} {goal:g}", "verdict": word})
    return claims


def _report(
    found: Measured, recipes: dict[str, Path], rungs: list[dict[str, Any]], arguments: argparse.Namespace
) -> dict[str, Any]:
    names = ("torch", "transformers", "accelerate", "lightning")
    script = f"import importlib.metadata as m; print({{name: m.version(name) for name in {names}}})"
    theirs = subprocess.run([str(arguments.peers_python), "-c", script], capture_output=True, text=True, check=False)
    return {
        **circumstances(f"python benchmarks/train_peers.py{' --quick' if arguments.quick else ''}"),
        "peers_versions": theirs.stdout.strip(),
        "shape": json.loads(os.environ[VARIABLE]),
        "recipes": {name: str(Recipe.read(path)) for name, path in recipes.items()},
        "contenders": {name: _figures(rows) for name, rows in found.items() if rows},
        "failed": [name for name, rows in found.items() if not rows],
        "claims": _claims(found),
        "ladder": rungs,
        "rounds": found,
    }


def _show(report: dict[str, Any]) -> None:
    for title, rows in (
        ("contenders", [{"what": name, **row} for name, row in report["contenders"].items()]),
        ("one technique on top of the other", report["ladder"]),
    ):
        table = Table(title=title, title_justify="left")
        for heading in ("", "tokens/s", "peak, MB"):
            table.add_column(heading, justify="right" if heading else "left")
        for row in rows:
            cells = (
                ["-", "-"]
                if "tokens_per_s" not in row
                else [f"{row['tokens_per_s']:,.0f}", f"{row['peak_bytes'] / 1e6:,.0f}"]
            )
            table.add_row(row["what"], *cells)
        if rows:
            Console().print(table)
    claims = Table(title="what was asked for", title_justify="left")
    for heading in ("", "of", "ratio (95%)", "goal", ""):
        claims.add_column(heading)
    for claim in report["claims"]:
        low, high = claim["ci95"]
        ratio = f"{claim['ratio']:.2f} ({low:.2f}-{high:.2f})"
        claims.add_row(claim["what"], " / ".join(claim["of"]), ratio, claim["goal"], claim["verdict"])
    Console().print(claims)
    if report["failed"]:
        print("not measured:", ", ".join(report["failed"]))


if __name__ == "__main__":
    try:
        main()
    except WhetError as error:
        sys.exit(str(error))
