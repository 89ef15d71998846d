"""How often the gate cries wolf, how often it sees a slowdown, and how long it takes; beside two common ways.

    python benchmarks/gate_power.py [--rounds 60] [--single-rounds 60]      # 20 and 25 minutes

Benchmarks of matrix products and two built-in workloads against themselves; the products against 2, 3 and 5 % more of
them. Rounds are added to docs/results/gate.json as they are measured, so that a run cut off loses nothing and the next
one adds to it.

- whet: a round is a pair of processes for each case, as `whet bench --against` measures them. A comparison takes rounds
  until its verdict is clear; one begins at each round (the last ones begin again at the first), so comparisons overlap:
  the number of independent ones is the number of rounds over the pairs that one takes.
- The common ways compare two single processes, one after the other. A single round is one process for each benchmark,
  in random order. pytest-benchmark's `--benchmark-compare-fail=min:5%`: slower if the minimum rose by 5 %.
  Mann-Whitney: slower if the calls are so at p < 0.05.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from circumstances import circumstances
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import stats

from whet.comparison.bench.against import side_in
from whet.comparison.bench.checkout import Tree
from whet.comparison.bench.point import measure_point
from whet.comparison.claim import Verdict
from whet.comparison.sequential import LOOKS, judge
from whet.comparison.turns import take_turns
from whet.files import write_whole
from whet.measure.isolate import run_isolated
from whet.measure.machine import describe
from whet.measure.quiet import QuietWait

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "gate.json"
TARGETS = {  # of the sides that are no matrix products
    "cnn_old": "digits-cnn",
    "cnn_same": "digits-cnn",
    "encoder_old": "docs-encoder",
    "encoder_same": "docs-encoder",
}
PRODUCTS = {  # side -> function in gate_targets.py
    "old": "same",
    "same": "same",
    "slower_2": "slower_2",
    "slower_3": "slower_3",
    "slower_5": "slower_5",
}
PROCESSES = {**{name: f"{HERE / 'gate_targets.py'}:{function}" for name, function in PRODUCTS.items()}, **TARGETS}
CASES = (  # what it is, old, new
    ("matrix products, the same code", "old", "same"),
    ("digits-cnn, the same code", "cnn_old", "cnn_same"),
    ("docs-encoder, the same code", "encoder_old", "encoder_same"),
    ("matrix products, 2 % more", "old", "slower_2"),
    ("matrix products, 3 % more", "old", "slower_3"),
    ("matrix products, 5 % more", "old", "slower_5"),
)
_SINGLE_BUDGET_S = 0.4
_BUDGET_S = 0.5  # the default of whet bench --against


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="to add; 0 only evaluates what is there")
    parser.add_argument("--single-rounds", type=int, default=60, help="to add, for the common ways")
    arguments = parser.parse_args()
    rounds, singles = _known("rounds"), _known("single_rounds")
    patience = QuietWait(report=print)
    for _ in range(arguments.rounds):
        rounds.append(_measure_round(random.Random(len(rounds)), patience))
        _write(rounds, singles, [])
    for _ in range(arguments.single_rounds):
        singles.append(_measure_single_round(random.Random(len(singles))))
        _write(rounds, singles, [])
    if len(rounds) >= LOOKS[-1] and singles:
        cases = [
            {"what": what, **_evaluate(rounds, i), **_alone(singles, old, new)}
            for i, (what, old, new) in enumerate(CASES)
        ]
        _write(rounds, singles, cases)
        _show(cases, len(rounds), len(singles))


def _known(name: str) -> list[Any]:
    """Rounds that were measured before, on this machine."""
    if not RESULTS.exists():
        return []
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    return list(known.get(name, [])) if known["machine"]["id"] == describe().fingerprint else []


def _measure_round(order: random.Random, patience: QuietWait) -> list[dict[str, float]]:
    """A pair of processes for each case."""
    found = []
    with tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        for _, old, new in CASES:
            target = TARGETS.get(old, "gate_targets.py:same")
            sides = [
                side_in(_tree(Path(scratch), name), name, target, {}, Path(scratch) / f"{name}-runs", _BUDGET_S, 60)
                for name in (old, new)
            ]
            started = time.perf_counter()
            runs = patience.measure(partial(take_turns, *sides, order.randrange(2)), lambda runs: runs[0].busy)
            if runs[0].busy:
                sys.exit(patience.sentence)
            if failure := runs[0].failure or runs[1].failure:
                sys.exit(failure)
            times = {name: round(run.latency_ms, 6) for name, run in zip(("old_ms", "new_ms"), runs, strict=True)}
            found.append({**times, "seconds": round(time.perf_counter() - started, 3)})
    return found


def _tree(scratch: Path, name: str) -> Tree:
    """A checkout of its own, in which the products are as many as this side has."""
    root = scratch / name
    root.mkdir(exist_ok=True)
    percent = name.removeprefix("slower_")
    text = (HERE / "gate_targets.py").read_text(encoding="utf-8")
    changed = text.replace("_PRODUCTS = 100", f"_PRODUCTS = {100 + int(percent)}") if percent.isdigit() else text
    (root / "gate_targets.py").write_text(changed, encoding="utf-8")
    return Tree(name, root, root)


def _measure_single_round(order: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        for name in order.sample(list(PROCESSES), len(PROCESSES)):
            arguments = {"target": PROCESSES[name], "sizes": {}, "budget_s": _SINGLE_BUDGET_S}
            options = {"with_memory": False, "with_energy": False, "with_limit": False}
            started = time.perf_counter()
            outcome = run_isolated(measure_point, {**arguments, **options}, Path(scratch), time_limit_s=60)
            assert outcome.value is not None, outcome.failure
            found[name] = {**outcome.value, "seconds": time.perf_counter() - started}
    result = {
        name: {
            "latency_ms": round(value["latency_ms"], 6),
            "min_ms": min(value["samples_ms"]),
            "seconds": round(value["seconds"], 3),
        }
        for name, value in found.items()
    }
    for _, old, new in CASES:
        samples = (found[side]["samples_ms"] for side in (new, old))
        result[new]["mann_whitney_p"] = float(stats.mannwhitneyu(*samples, alternative="greater").pvalue)
    return result


def _write(rounds: list[Any], singles: list[Any], cases: list[dict[str, Any]]) -> None:
    report = {
        **circumstances("python benchmarks/gate_power.py"),
        "cases": cases,
        "rounds": rounds,
        "single_rounds": singles,
    }
    write_whole(RESULTS, json.dumps(report) + "\n")


def _evaluate(rounds: list[Any], case: int) -> dict[str, Any]:
    """Shares of the comparisons that said "slower", passed, or could not tell; the median cost of one; the scatter."""
    outcomes, pairs, seconds = [], [], []
    for start in range(len(rounds)):
        turn = [found[case] for found in rounds[start:] + rounds[:start]]
        old, new = ([found[side] for found in turn] for side in ("old_ms", "new_ms"))
        num = next(n for n in LOOKS if judge(old[:n], new[:n]).is_clear)
        outcomes.append(judge(old[:num], new[:num]).verdict)
        pairs.append(num)
        seconds.append(sum(found["seconds"] for found in turn[:num]))
    logs = [math.log(found[case]["new_ms"] / found[case]["old_ms"]) for found in rounds]
    return {
        "num_rounds": len(rounds),
        "fail": outcomes.count(Verdict.FAIL) / len(outcomes),
        "pass": outcomes.count(Verdict.PASS) / len(outcomes),
        "inconclusive": outcomes.count(Verdict.INCONCLUSIVE) / len(outcomes),
        "median_pairs": sorted(pairs)[len(pairs) // 2],
        "median_seconds": sorted(seconds)[len(seconds) // 2],
        "scatter": statistics.stdev(logs),
    }


def _alone(singles: list[Any], before: str, after: str) -> dict[str, Any]:
    """What the common ways say of single processes, and how these scatter."""
    logs = [math.log(found[after]["latency_ms"] / found[before]["latency_ms"]) for found in singles]
    tests = [found[after]["mann_whitney_p"] for found in singles]
    return {
        "num_single_rounds": len(singles),
        "min_5_percent": sum(r[after]["min_ms"] > 1.05 * r[before]["min_ms"] for r in singles) / len(singles),
        "mann_whitney": sum(p < 0.05 for p in tests) / len(singles),
        "single_scatter": statistics.stdev(logs),
    }


def _show(cases: list[dict[str, Any]], num_rounds: int, num_singles: int) -> None:
    title = f"called slower, of {num_rounds} comparisons each; the common ways, of {num_singles}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in ("whet", "not\nclear", "pairs", "s", "sd", "min:5%", "Mann-\nWhitney", "sd"):
        table.add_column(column, justify="right", no_wrap=True)
    for case in cases:
        shares = [f"{100 * case[name]:.0f}%" for name in ("fail", "inconclusive")]
        cost = [str(case["median_pairs"]), f"{case['median_seconds']:.0f}", f"{100 * case['scatter']:.1f}%"]
        others = [f"{100 * case[name]:.0f}%" for name in ("min_5_percent", "mann_whitney")]
        table.add_row(case["what"], *shares, *cost, *others, f"{100 * case['single_scatter']:.1f}%")
    Console().print(table)


if __name__ == "__main__":
    main()
