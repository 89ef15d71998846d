"""What `make demo` finds, as figures for docs/results.md.

    python benchmarks/demo.py [--budget 85]

Tunes the built-in workloads and writes docs/results/demo.json and docs/results/limits.json.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from whet.files import write_whole
from whet.machine import describe
from whet.machine.limits import load_limits
from whet.tuner.tuning import tune, versions

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TARGETS = ("digits-cnn", "docs-encoder", "docs-gpt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=85.0, help="seconds for each workload")
    budget = parser.parse_args().budget
    machine = describe()
    where = {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint}
    rows = []
    with tempfile.TemporaryDirectory(prefix="whet-demo-") as scratch:
        for target in TARGETS:
            result = tune(target, budget_s=budget, out=Path(scratch) / target)
            print(result.sentence)
            rows.append(result.summary())
    for row in rows:
        for key in ("recipe", "report"):  # paths of a directory that is gone
            row.pop(key)
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = {"command": f"python benchmarks/demo.py --budget {budget:.0f}", "machine": where, "versions": versions()}
    write_whole(RESULTS / "demo.json", json.dumps({**report, "workloads": rows}, indent=1) + "\n")
    limits = {"command": "whet limits --json", "machine": where, "versions": versions(), **asdict(load_limits(machine))}
    write_whole(RESULTS / "limits.json", json.dumps(limits, indent=1) + "\n")


if __name__ == "__main__":
    main()
