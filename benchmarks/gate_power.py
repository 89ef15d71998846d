"""How often the gate cries wolf, how often it sees a slowdown, and how long it takes; beside two common ways.

    python benchmarks/gate_power.py [--rounds 100]

A round is five fresh processes in random order: the same code twice, and versions with 2, 3 and 5 % more work. Rounds
are added to docs/results/gate.json as they are measured, so that a run cut off loses nothing and the next one adds to
it. From them:

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
OLD = "old"
NEW = {"same": 0, "slower_2": 2, "slower_3": 3, "slower_5": 5}  # -> percent
_BUDGET_S = 0.4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="to add; 0 only evaluates what is there")
    arguments = parser.parse_args()
    rounds = _known_rounds()
    for _ in range(arguments.rounds):
        rounds.append(_measure_round(random.Random(len(rounds))))
        _write(rounds)
    if rounds:
        _show(_write(rounds))


def _known_rounds() -> list[dict[str, Any]]:
    """Those measured before, on this machine."""
    if not RESULTS.exists():
        return []
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    return list(known["rounds"]) if known["machine"]["id"] == describe().fingerprint else []


def _measure_round(order: random.Random) -> dict[str, Any]:
    names = [OLD, *NEW]
    found = {}
    with tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        for name in order.sample(names, len(names)):
            target = f"{HERE / 'gate_targets.py'}:{'same' if name == OLD else name}"
            arguments = {"target": target, "sizes": {}, "budget_s": _BUDGET_S}
            options = {"with_memory": False, "with_energy": False, "with_limit": False}
            started = time.perf_counter()
            outcome = run_isolated(FUNCTION, {**arguments, **options}, Path(scratch), time_limit_s=60)
            assert outcome.value is not None, outcome.failure
            found[name] = {**outcome.value, "seconds": time.perf_counter() - started}
    old = found[OLD]["samples_ms"]
    return {
        name: {
            "latency_ms": round(value["latency_ms"], 6),
            "min_ms": min(value["samples_ms"]),
            "mann_whitney_p": float(stats.mannwhitneyu(value["samples_ms"], old, alternative="greater").pvalue),
            "seconds": round(value["seconds"], 3),
        }
        for name, value in found.items()
    }


def _write(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    machine = describe()
    report = {
        "command": "python benchmarks/gate_power.py",
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": versions(),
        "num_rounds": len(rounds),
        "cases": {name: _evaluate(rounds, name) for name in NEW} if len(rounds) >= LOOKS[-1] else {},
        "rounds": rounds,
    }
    write_whole(RESULTS, json.dumps(report) + "\n")
    return report


def _evaluate(rounds: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Shares of the comparisons that said "slower", passed, or could not tell; and the median cost of one."""
    outcomes, pairs, seconds = [], [], []
    for start in range(len(rounds)):
        turn = rounds[start:] + rounds[:start]
        old, new = ([r[side]["latency_ms"] for r in turn] for side in (OLD, name))
        num = next(n for n in LOOKS if judge(old[:n], new[:n]).is_clear)
        outcomes.append(judge(old[:num], new[:num]).outcome)
        pairs.append(num)
        seconds.append(sum(r[side]["seconds"] for r in turn[:num] for side in (OLD, name)))
    return {
        "percent": NEW[name],
        "fail": outcomes.count(Outcome.FAIL) / len(outcomes),
        "pass": outcomes.count(Outcome.PASS) / len(outcomes),
        "inconclusive": outcomes.count(Outcome.INCONCLUSIVE) / len(outcomes),
        "median_pairs": sorted(pairs)[len(pairs) // 2],
        "median_seconds": sorted(seconds)[len(seconds) // 2],
        "min_5_percent": sum(r[name]["min_ms"] > 1.05 * r[OLD]["min_ms"] for r in rounds) / len(rounds),
        "mann_whitney": sum(r[name]["mann_whitney_p"] < 0.05 for r in rounds) / len(rounds),
    }


def _show(report: dict[str, Any]) -> None:
    table = Table(title=f"called slower, of {report['num_rounds']} comparisons", title_justify="left")
    for column in ("slowdown", "whet gate", "not clear", "pairs", "seconds", "min:5%", "Mann-Whitney"):
        table.add_column(column, justify="right")
    for case in report["cases"].values():
        shares = [f"{100 * case[name]:.1f} %" for name in ("fail", "inconclusive")]
        cost = [str(case["median_pairs"]), f"{case['median_seconds']:.0f}"]
        others = [f"{100 * case[name]:.1f} %" for name in ("min_5_percent", "mann_whitney")]
        table.add_row(f"{case['percent']} %", *shares, *cost, *others)
    Console().print(table)


if __name__ == "__main__":
    main()
