"""The quality of signs-stream on people whom it has not seen, and what whet tune makes of it here.

    python benchmarks/signs_stream.py --run DIR --data sign_digits.tar [--budget 15m] [--frame-budget 40ms]

--run is the directory of the training's state, whose quality.json holds the table of
`python -m benchmarks.built_in_weights signs-stream`. With --data, `whet tune signs-stream` runs twice: for the most
frames of the same quality, from 4 steps of lcm, and for the best quality within --frame-budget. The machine must be
quiet. --searches names one of them: fps or quality. Writes docs/results/signs_stream.MACHINE.json;
`benchmarks/results.py` makes the table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from circumstances import circumstances
from signs_tables import signs_lines

from whet.files import write_whole
from whet.measure.machine import describe
from whet.tuner import figures
from whet.tuner.result import MeasuredVariant, Result

RESULTS = Path(__file__).parents[1] / "docs" / "results"
_INCONCLUSIVE = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="the directory of the training's state")
    parser.add_argument("--data", type=Path, help="sign_digits.tar: tune the stream too")
    parser.add_argument("--budget", default="15m", help="the time of each search")
    parser.add_argument("--exclude", default="", help="techniques that the searches leave out")
    parser.add_argument("--searches", default="fps,quality", help="which searches; default: %(default)s")
    parser.add_argument("--frame-budget", default="40ms", help="of the search for the best quality")
    parser.add_argument("--out", type=Path, help="a directory that keeps the tuned streams")
    arguments = parser.parse_args()
    path = RESULTS / f"signs_stream.{describe().fingerprint}.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    excluded = f" --exclude {arguments.exclude}" if arguments.exclude else ""
    report |= circumstances(f"python benchmarks/signs_stream.py --run DIR --data sign_digits.tar{excluded}")
    if arguments.run is not None:
        report["quality"] = json.loads((arguments.run / "quality.json").read_text(encoding="utf-8"))
    if arguments.data is not None:
        with tempfile.TemporaryDirectory(prefix="whet-signs-") as scratch:
            common = ["--steps", "4", "--sampler", "lcm", "--data", str(arguments.data), "--budget", arguments.budget]
            common += ["--exclude", arguments.exclude] if arguments.exclude else []
            searches: dict[str, list[str]] = {"fps": [], "quality": ["--frame-budget", arguments.frame_budget]}
            for name in arguments.searches.split(","):
                found = _tuned([*common, *searches[name]], (arguments.out or Path(scratch)) / name)
                report["tuned"] = report.get("tuned", {}) | {name: found}
    write_whole(path, json.dumps(report, indent=1) + "\n")
    print("\n".join(signs_lines(report)))


def _tuned(options: list[str], out: Path) -> dict[str, Any]:
    """Run whet tune, and return its result without what it tried."""
    command = [sys.executable, "-m", "whet", "tune", "signs-stream", *options, "--out", str(out), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in (0, _INCONCLUSIVE):
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}")
    return _published(Result.model_validate_json((out / "result.json").read_text(encoding="utf-8")))


def _published(result: Result) -> dict[str, Any]:
    """Return what the page shows of a result: the verdict, the original and what was found beside it."""
    found = [point for point in figures.final_points(result)[1:] if point.steps]
    return {
        "budget_s": result.within_s,
        "verdict": result.verdict,
        "sentence": result.sentence,
        "seconds": result.seconds,
        "num_trials": len(result.trials),
        "original": _point(result, result.baseline),
        "best": _point(result, result.best),
        "rejected": [_point(result, point) for point in found if point.label != result.best.label],
    }


def _point(result: Result, point: MeasuredVariant) -> dict[str, Any]:
    notes = next((trial.notes for trial in result.trials if trial.number == point.number), ())
    return {
        "label": point.label,
        "models": dict(note.split(": ", 1) for note in notes),
        "fps": point.throughput_per_s or None,
        "p99_s": None if point.p99_ms is None else point.p99_ms / 1e3,
        "figures": None if point.stream is None else point.stream.model_dump(),
        "speedup": point.speedup,
        "speedup_ci95": point.speedup_ci95,
    }


if __name__ == "__main__":
    main()
