"""Time per 1,000 lines of `whet audit`, beside torchfix and ruff, on real packages; and how long an empty file takes.

    python benchmarks/audit_speed.py [--torchfix COMMAND] [PACKAGE ...]

Each tool audits the same files on one core, in processes that take turns; the figure is the median. torchfix needs a
place of its own (`python -m venv`, `pip install torchfix`): name its command, or it is left out. Writes
docs/results/audit_speed.json; benchmarks/results.py makes the table.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from circumstances import circumstances
from quietly import quiet_machine

from whet.files import write_whole

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "audit_speed.json"
PACKAGES = ["torchao", "nncf"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--torchfix", default=shutil.which("torchfix"))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    tools = {
        "whet audit": [sys.executable, "-m", "whet", "audit", "--output-format", "concise"],
        "ruff check": [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet", "--exit-zero"],
    }
    if args.torchfix:
        tools["torchfix"] = [args.torchfix, "--select", "ALL", "--show-stderr"]
    with quiet_machine():
        measured = {
            "start_ms": _start_ms(),
            "packages": {package: _measure(package, tools, args.rounds) for package in args.packages},
        }
    report = {
        **circumstances(f"python benchmarks/audit_speed.py {' '.join(args.packages)}", _tool_versions(args.torchfix)),
        "rounds": args.rounds,
        **measured,
    }
    write_whole(RESULTS, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def _measure(package: str, tools: dict[str, list[str]], num_rounds: int) -> dict[str, object]:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    folder = Path(spec.origin).parent
    num_lines = sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))
    times: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(num_rounds):
        for name, command in tools.items():
            times[name].append(_seconds([*command, str(folder)]))
    return {
        "lines": num_lines,
        "seconds": {name: statistics.median(taken) for name, taken in times.items()},
        "ms_per_1000_lines": {name: 1e6 * statistics.median(taken) / num_lines for name, taken in times.items()},
    }


def _tool_versions(torchfix: str | None) -> dict[str, str]:
    """As each tool says it."""
    found = {
        "ruff": [sys.executable, "-m", "ruff", "--version"],
        **({"torchfix": [torchfix, "--version"]} if torchfix else {}),
    }
    said = {name: subprocess.run(command, capture_output=True, text=True) for name, command in found.items()}
    return {name: (done.stdout + done.stderr).split()[-1] for name, done in said.items()}


def _start_ms() -> float:
    """Median time of an audit of one empty file: start-up and nothing else."""
    with tempfile.TemporaryDirectory() as directory:
        empty = Path(directory) / "empty.py"
        empty.write_text("")
        return 1e3 * statistics.median(_seconds([sys.executable, "-m", "whet", "audit", str(empty)]) for _ in range(9))


def _seconds(command: list[str]) -> float:
    """Wall time on one core. What is found is not of interest here, but that it ran is."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, preexec_fn=_one_core, text=True)
    taken = time.perf_counter() - began
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return taken


def _one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
