"""How much CPU time each command of whet takes to show its help, and to refuse what is wrong.

    python benchmarks/startup.py [--runs 5]      # writes docs/results/startup.json

Each command line runs in a fresh process, so many times. The CPU time (user and system) of the quickest run counts:
other processes lengthen it little, and never shorten it. The aim is 0.35 s at most, without torch. `import whet` and a
wrong name of whet are timed too.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from circumstances import circumstances
from rich.console import Console
from rich.table import Table

from whet.cli import COMMANDS
from whet.files import write_whole

AIM_S = 0.35
RESULT = Path(__file__).parents[1] / "docs" / "results" / "startup.json"
WRONG = {
    "tune": "digts-cnn",
    "run": "--recipe none.toml -- python none.py",
    "train": "none.toml",
    "apply": "none.toml digts-cnn",
    "bench": "digts-cnn",
    "profile": "digts-cnn",
    "audit": "none.py",
    "techniques": "nope",
    "doctor": "nope",
    "limits": "nope",
    "serve": "none",
    "bench-serve": "none --rate 1",
    "stream": "nope",
    "chat": "none",
    "monitor": "-- none-such-program",
}
"""What names nothing, for each command: an unknown target, technique or file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    whet = [sys.executable, "-P", "-m", "whet"]
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for command in COMMANDS:
            lines = ([command, "--help"], [command, "--nope"], [command, *WRONG[command].split()])
            rows.append((command, *(cpu_s([*whet, *line], directory, runs) for line in lines)))
        python = [sys.executable, "-P", "-c"]
        imported = cpu_s([*python, "import whet"], directory, runs)
        wrong = cpu_s([*python, "import whet; hasattr(whet, 'optimize')"], directory, runs)
    table = Table("command", "help (s)", "wrong option (s)", "wrong name (s)")
    for command, *times in rows:
        table.add_row(command, *(f"{time:.2f}" for time in times))
    console = Console()
    console.print(table)
    slowest = max(time for _, *times in rows for time in times)
    console.print(f"import whet {imported:.2f} s, a wrong name of whet {wrong:.2f} s, slowest {slowest:.2f} s")
    console.print("reached" if slowest <= AIM_S else f"missed: the aim is {AIM_S} s")
    found = {
        **circumstances(f"python benchmarks/startup.py --runs {runs}"),
        "aim_s": AIM_S,
        "runs": runs,
        "import_s": imported,
        "wrong_name_of_whet_s": wrong,
        "commands": [
            dict(zip(("command", "help_s", "wrong_option_s", "wrong_name_s"), row, strict=True)) for row in rows
        ],
    }
    write_whole(RESULT, json.dumps(found, indent=1) + "\n")


def cpu_s(words: list[str], directory: str, runs: int) -> float:
    """Return the CPU seconds of the quickest run of a command line."""
    return min(_once(words, directory) for _ in range(runs))


def _once(words: list[str], directory: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, cwd=directory, env={**os.environ, "COLUMNS": "80"}, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
