"""What `whet train examples/tinyshakespeare.toml` reaches in 15 minutes: held-out loss by time.

    python benchmarks/tinyshakespeare.py [--run DIR] [KEY=VALUE ...]

Trains in a temporary directory, unless --run names a run that has come to its end, and reads what it logged. The goal
is at most 1.60 nats a character. Others' figures on the same text and characters (github.com/karpathy/nanoGPT, README):
1.47 for 10.7 million parameters on a GPU, 1.88 in three minutes on a CPU.

Writes docs/results/tinyshakespeare.MACHINE.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from circumstances import circumstances

from whet.files import write_whole
from whet.measure.machine import describe

GOAL = 1.60
EXAMPLE = HERE.parent / "examples" / "tinyshakespeare.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="the directory of a run that has come to its end")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the configuration")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whet-tinyshakespeare-") as scratch:
        run = options.run or Path(scratch) / "run"
        if options.run is None:
            command = [sys.executable, "-m", "whet", "train", str(EXAMPLE), f"out={run}", *options.changes]
            subprocess.run(command, check=True)
        if not (run / "model").is_dir():
            parser.error(f"{run} has not come to its end")
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    report = _report(lines, options.changes)
    print(f"{report['held_out_loss']:.4f} nats a character after {report['seconds']:.0f} s: {report['verdict']}")
    path = HERE.parent / "docs" / "results" / f"tinyshakespeare.{describe().fingerprint}.json"
    write_whole(path, json.dumps(report, indent=1) + "\n")


def _report(lines: list[dict[str, Any]], changes: list[str]) -> dict[str, Any]:
    last = lines[-1]
    keys = ("step", "tokens", "seconds", "loss", "held_out_loss")
    command = " ".join(["python benchmarks/tinyshakespeare.py", *changes])
    return {
        **circumstances(command),
        "goal": GOAL,
        "scores": [{key: line[key] for key in keys} for line in lines if line.get("held_out_loss") is not None],
        "tokens": last["tokens"],
        "seconds": last["seconds"],
        "held_out_loss": last["held_out_loss"],
        "verdict": "reached" if last["held_out_loss"] <= GOAL and last["seconds"] <= 15 * 60 else "missed",
    }


if __name__ == "__main__":
    main()
