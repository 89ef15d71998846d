"""Measure what an audit's fixes, and then a tuned recipe, make of examples/latentwire's training.

    python benchmarks/latentwire.py [--tune 15m] [--pairs 8] [--steps 30]    # writes docs/results/latentwire.json

`whet tune` first finds a recipe for fast/workload.py, and proves its held-out loss in pairs of runs. Then three
versions of the script run in processes of their own, in pairs that take turns (ABBA): slow/train.py as it was written,
fast/train.py with the fixes that an audit kept, and fast/train_tuned.py with the recipe. The time of a step is the
median over the quiet steps of a process after the first three, which hold the compilation. Its loss is seen from
outside, where backward is called. --recipe FILE takes a recipe that was found before. --print-only measures on a busy
machine too, and writes nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from circumstances import circumstances
from rich.console import Console
from rich.table import Table

from whet.comparison.claim import Claim
from whet.comparison.compare import compare_all
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import Fixed
from whet.core.recipe import Recipe
from whet.files import write_whole
from whet.measure.isolate import Outcome, run_isolated
from whet.measure.quiet import OnBusy, QuietWait
from whet.scripts.audit_measure.child import run_script
from whet.scripts.audit_measure.version import ScriptVersion
from whet.tuner.result import FILE, Result

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "latentwire"
RESULT = ROOT / "docs" / "results" / "latentwire.json"
GOAL = 10.0  # times as fast as the slow script
LOSS_GOAL = 0.0025  # of the mean training loss
_LIMIT_S = 600.0
_VERSIONS = {"slow": ("slow", "train.py"), "audited": ("fast", "train.py"), "tuned": ("fast", "train_tuned.py")}


def main() -> None:
    """Tune, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", default="15m", help="the budget of whet tune")
    parser.add_argument("--recipe", type=Path, help="a recipe in place of tuning")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30, help="optimiser steps of each process; slow ones make fewer")
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    on_busy = OnBusy.GO_ON if args.print_only else OnBusy.WAIT
    with tempfile.TemporaryDirectory(prefix="whet-latentwire-") as scratch:
        folder = Path(scratch)
        found = {} if args.recipe else tuned(folder / "tuned", args.tune, on_busy)
        recipe = args.recipe.resolve() if args.recipe else folder / "tuned" / "recipe.toml"
        patience = QuietWait(on_busy, report=lambda text: print(text, file=sys.stderr) if text else None)
        patience.begin()
        claims = measured(folder, recipe, args.pairs, args.steps, patience)
        rows = [row_of(name, claim) for name, claim in claims.items()]
        label = str(Recipe.read(recipe))
    show(rows, label)
    failed = [
        f"{name}: {claim.failure or claim.busy or 'too few pairs'}"
        for name, claim in claims.items()
        if claim.failure or claim.busy or claim.ratio is None
    ]
    if args.print_only:
        return
    if failed:
        sys.exit(f"Nothing is written: {'; '.join(failed)}.")
    report = {
        **circumstances(
            f"python benchmarks/latentwire.py --tune {args.tune} --pairs {args.pairs} --steps {args.steps}"
        ),
        "goal": GOAL,
        "loss_goal": LOSS_GOAL,
        "recipe": label,
        "rows": rows,
        "diagnosis": found.get("diagnosis", ""),
        "losses": found.get("losses", ""),
        "tuning": found,
    }
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")


def tuned(directory: Path, budget: str, on_busy: OnBusy) -> dict[str, Any]:
    """Run whet tune on the audited version, and return what it found.

    Args:
        directory: Where it writes.
        budget: Its budget, as its option takes it.
        on_busy: What it does on a busy machine.
    """
    target = f"{EXAMPLE / 'fast' / 'workload.py'}:workload"
    command = [sys.executable, "-m", "whet", "tune", target, "--budget", budget, "--out", str(directory)]
    ended = subprocess.run([*command, "--on-busy", on_busy.value], check=False)
    if not (directory / FILE).is_file():
        sys.exit(f"Nothing is written: whet tune gave no result (exit {ended.returncode}).")
    result = Result.model_validate_json((directory / FILE).read_text(encoding="utf-8"))
    return {
        "verdict": result.verdict,
        "sentence": result.sentence,
        "diagnosis": result.diagnosis.sentence if result.diagnosis is not None else "",
        "seconds": result.seconds,
        "losses": next((p.losses.words for p in [result.best, *result.finalists] if p.losses is not None), ""),
    }


def measured(folder: Path, recipe: Path, num_pairs: int, num_steps: int, patience: QuietWait) -> dict[str, Claim]:
    """Compare the versions in pairs of processes.

    Args:
        folder: Where processes write.
        recipe: The recipe of the tuned version.
        num_pairs: Pairs of each claim.
        num_steps: Optimiser steps of a process.
        patience: How long to wait for a quiet machine.

    Returns:
        The claims: audited over slow, tuned over slow, tuned over audited.
    """
    sides = {
        name: ScriptVersion(name, partial(run_version, name, folder / name, recipe, num_steps)) for name in _VERSIONS
    }
    pairs = [("slow", "audited"), ("slow", "tuned"), ("audited", "tuned")]
    found = compare_all(
        [(sides[old], sides[new]) for old, new in pairs],
        schedule=ABBA(),
        stop=Fixed(most=num_pairs, spare=2, lost_after=0, noise_from="pairs"),
        patience=patience,
    )
    return {f"{new} over {old}": claim for (old, new), claim in zip(pairs, found.claims, strict=True)}


def run_version(name: str, folder: Path, recipe: Path, num_steps: int) -> Outcome:
    """Run a version of the script for some optimiser steps, in a process of its own."""
    directory, script = _VERSIONS[name]
    arguments = ["--steps", "1000", "--eval_every", "100000"]
    if name == "tuned":
        arguments += ["--recipe", str(recipe)]
    request = {
        "script": str(EXAMPLE / directory / script),
        "arguments": arguments,
        "num_steps": num_steps,
        "limit_s": 0.9 * _LIMIT_S,
        "seed": 0,
    }
    return run_isolated(run_script, request, folder, time_limit_s=_LIMIT_S)


def row_of(name: str, claim: Claim) -> dict[str, Any]:
    """Return the figures of a claim."""
    agreement = claim.agreement
    return {
        "what": name,
        "old_ms": middle_ms(claim.old_s),
        "new_ms": middle_ms(claim.new_s),
        "ratio": claim.ratio,
        "ci95": claim.ci95,
        "num_pairs": claim.num_pairs,
        "verdict": claim.verdict.value,
        "loss_gap": None if agreement is None else agreement.distance,
        "loss": "" if agreement is None else agreement.words,
        "is_same_loss": agreement is not None and agreement.distance is not None and agreement.distance <= LOSS_GOAL,
    }


def middle_ms(seconds: tuple[float, ...]) -> float | None:
    """Return the median in milliseconds; None where nothing was measured."""
    return 1e3 * sorted(seconds)[len(seconds) // 2] if seconds else None


def show(rows: list[dict[str, Any]], recipe: str) -> None:
    """Print the table."""
    table = Table("version", "old, ms", "new, ms", "times as fast (95%)", "loss", title=f"recipe: {recipe}")
    for row in rows:
        if row["ratio"] is None:
            table.add_row(row["what"], "-", "-", "not measured", "-")
            continue
        low, high = row["ci95"]
        speedup = f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})"
        table.add_row(row["what"], f"{row['old_ms']:.1f}", f"{row['new_ms']:.1f}", speedup, row["loss"])
    Console().print(table)


if __name__ == "__main__":
    main()
