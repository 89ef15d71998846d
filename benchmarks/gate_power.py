"""How often the gate cries wolf, how often it sees a slowdown, and how long it takes; beside two common ways.

    python benchmarks/gate_power.py [--rounds 70]

A round is nine fresh processes in random order: a benchmark of matrix products twice, and with 2, 3 and 5 % more of
them; two built-in workloads, each twice. Rounds are added to docs/results/gate.json as they are measured, so that a run
cut off loses nothing and the next one adds to it. From them:

- whet: comparisons of successive rounds, as `whet bench --against` makes them: pairs come in until the verdict is
  clear. One comparison begins at each round (the last ones begin again at the first), so comparisons overlap; the
  number of independent ones is the number of rounds over the pairs that one takes.
- pytest-benchmark's `--benchmark-compare-fail=min:5%`: one process on each side, slower if the minimum rose by 5 %.
- Mann-Whitney: one process on each side, slower if its calls are so at p < 0.05.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from scipy import stats

from whet.files import write_whole
from whet.guard.gate import LOOKS, Outcome, judge
from whet.guard.sweep import FUNCTION
from whet.machine import describe, versions
from whet.measure import run_isolated

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "gate.json"
PRODUCTS = f"{HERE / 'gate_targets.py'}:"
PROCESSES = {  # name -> target
    "old": PRODUCTS + "same",
    "same": PRODUCTS + "same",
    "slower_2": PRODUCTS + "slower_2",
    "slower_3": PRODUCTS + "slower_3",
    "slower_5": PRODUCTS + "slower_5",
    "cnn_old": "digits-cnn",
    "cnn_same": "digits-cnn",
    "encoder_old": "docs-encoder",
    "encoder_same": "docs-encoder",
}
CASES = (  # what it is, by how many percent the new side is slower, old, new
    ("matrix products, the same code", 0, "old", "same"),
    ("digits-cnn, the same code", 0, "cnn_old", "cnn_same"),
    ("docs-encoder, the same code", 0, "encoder_old", "encoder_same"),
    ("matrix products, 2 % more", 2, "old", "slower_2"),
    ("matrix products, 3 % more", 3, "old", "slower_3"),
    ("matrix products, 5 % more", 5, "old", "slower_5"),
)
_BUDGET_S = 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=70, help="to add; 0 only evaluates what is there")
    arguments = parser.parse_args()
    rounds = _known_rounds()
    for _ in range(arguments.rounds):
        rounds.append(_measure_round(random.Random(len(rounds))))
        _write(rounds, [])
    if len(rounds) >= LOOKS[-1]:
        cases = [_evaluate(rounds, *case) for case in CASES]
        _write(rounds, cases)
        _show(cases, len(rounds))


def _known_rounds() -> list[dict[str, Any]]:
    """Those measured before, on this machine."""
    if not RESULTS.exists():
        return []
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    return list(known["rounds"]) if known["machine"]["id"] == describe().fingerprint else []


def _measure_round(order: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        for name in order.sample(list(PROCESSES), len(PROCESSES)):
            arguments = {"target": PROCESSES[name], "sizes": {}, "budget_s": _BUDGET_S}
            options = {"with_memory": False, "with_energy": False, "with_limit": False}
            started = time.perf_counter()
            outcome = run_isolated(FUNCTION, {**arguments, **options}, Path(scratch), time_limit_s=60)
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
    for _, _, old, new in CASES:
        samples = (found[side]["samples_ms"] for side in (new, old))
        result[new]["mann_whitney_p"] = float(stats.mannwhitneyu(*samples, alternative="greater").pvalue)
    return result


def _write(rounds: list[dict[str, Any]], cases: list[dict[str, Any]]) -> None:
    machine = describe()
    report = {
        "command": "python benchmarks/gate_power.py",
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": versions(),
        "num_rounds": len(rounds),
        "cases": cases,
        "rounds": rounds,
    }
    write_whole(RESULTS, json.dumps(report) + "\n")


def _evaluate(rounds: list[dict[str, Any]], what: str, percent: int, before: str, after: str) -> dict[str, Any]:
    """Shares of the comparisons that said "slower", passed, or could not tell; and the median cost of one."""
    outcomes, pairs, seconds = [], [], []
    for start in range(len(rounds)):
        turn = rounds[start:] + rounds[:start]
        old, new = ([r[side]["latency_ms"] for r in turn] for side in (before, after))
        num = next(n for n in LOOKS if judge(old[:n], new[:n]).is_clear)
        outcomes.append(judge(old[:num], new[:num]).outcome)
        pairs.append(num)
        seconds.append(sum(r[side]["seconds"] for r in turn[:num] for side in (before, after)))
    return {
        "what": what,
        "percent": percent,
        "fail": outcomes.count(Outcome.FAIL) / len(outcomes),
        "pass": outcomes.count(Outcome.PASS) / len(outcomes),
        "inconclusive": outcomes.count(Outcome.INCONCLUSIVE) / len(outcomes),
        "median_pairs": sorted(pairs)[len(pairs) // 2],
        "median_seconds": sorted(seconds)[len(seconds) // 2],
        "min_5_percent": sum(r[after]["min_ms"] > 1.05 * r[before]["min_ms"] for r in rounds) / len(rounds),
        "mann_whitney": sum(r[after]["mann_whitney_p"] < 0.05 for r in rounds) / len(rounds),
    }


def _show(cases: list[dict[str, Any]], num_rounds: int) -> None:
    table = Table(title=f"called slower, of {num_rounds} comparisons each", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in ("whet", "not\nclear", "pairs", "s", "min:5%", "Mann-\nWhitney"):
        table.add_column(column, justify="right", no_wrap=True)
    for case in cases:
        shares = [f"{100 * case[name]:.1f} %" for name in ("fail", "inconclusive")]
        cost = [str(case["median_pairs"]), f"{case['median_seconds']:.0f}"]
        others = [f"{100 * case[name]:.1f} %" for name in ("min_5_percent", "mann_whitney")]
        table.add_row(case["what"], *shares, *cost, *others)
    Console().print(table)


if __name__ == "__main__":
    main()
