"""What `make demo` finds, as figures for docs/results.md.

    python benchmarks/demo.py [--budget 120]

Runs `whet tune` on the built-in workloads, shows what it prints, and writes docs/results/demo.json and
docs/results/limits.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from circumstances import circumstances

from whet.files import write_whole
from whet.measure.machine import describe
from whet.measure.machine.limits import load_limits
from whet.tuner.result import FILE, Result

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TARGETS = ("digits-cnn", "docs-encoder", "docs-gpt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=120, help="seconds for each workload")
    budget = parser.parse_args().budget
    limits = asdict(load_limits(describe()))
    command = ["whet", "tune", *TARGETS, "--budget", f"{budget}s"]
    with tempfile.TemporaryDirectory(prefix="whet-demo-") as scratch:
        ended = subprocess.run([sys.executable, "-m", *command, "--out", scratch], check=False)
        if ended.returncode:
            sys.exit(f"Nothing is written: `whet tune` gave no verdict for each workload (exit {ended.returncode}).")
        results = [
            Result.model_validate_json((Path(scratch) / target / FILE).read_text(encoding="utf-8"))
            for target in TARGETS
        ]
    rows = [result.summary() for result in results]
    for row in rows:
        for key in ("recipe", "report"):  # paths of a directory that is gone
            row.pop(key)
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = circumstances(" ".join(command))
    write_whole(RESULTS / "demo.json", json.dumps({**report, "workloads": rows}, indent=1) + "\n")
    write_whole(RESULTS / "limits.json", json.dumps({**report, "command": "whet limits", **limits}, indent=1) + "\n")


if __name__ == "__main__":
    main()
