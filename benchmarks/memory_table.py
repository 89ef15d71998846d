"""Measure the memory of training on, and of reading, texts of 2K to 32K tokens, with and without a memory bank.

    python benchmarks/memory_table.py [--repeats 3] [--times] [--longest 32768] [--trial]

The guide of the LTM Transformer says that a memory bank takes a half, a 16th and a 128th of the standard's memory at
2K, 8K and 32K tokens. Four arms of the same parameters are measured, one layer with two heads each:

- naive attention, which keeps its scores; to 16K tokens, beyond that extrapolated;
- PyTorch's scaled_dot_product_attention over the whole text;
- attention within segments of 256 tokens, and a bank;
- the same, where backward keeps the states between blocks of segments and computes a block again; a block has as many
  segments as the square root of their number. Reading is the same as without.

All compute the cross-entropy in chunks. Reading goes on by 64 tokens with what is kept of the text, but for naive
attention. Each point is a process of its own: the peak of its resident memory above what it held after a call on 512
tokens, with a malloc that returns what is free at once. The exponent is that of a power law through all points, with a
bootstrap interval over lengths.

Writes docs/results/memory_table.MACHINE.json; benchmarks/results.py makes the table. Memory can be measured on a busy
machine; --times adds times, and asks for a quiet one. --trial writes nothing.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import circumstances
from memory_points import (
    ARMS,
    EXACT_MALLOC,
    HEADS,
    LAYERS,
    NAIVE,
    SDPA,
    SEGMENT,
    SLOTS,
    VOCABULARY,
    WIDTH,
    Point,
    measured,
)
from quietly import quiet_machine
from recall_tables import memory_lines, remembered_at

from whet.files import write_whole
from whet.measure.machine import describe

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CLAIMED = {2048: 2.0, 8192: 16.0, 32768: 128.0}  # tokens: the standard's memory over that with a bank, in the guide
LENGTHS = (2048, 4096, 8192, 16384, 32768)
LONGEST_NAIVE = 16384
_RESAMPLES = 2000


def main() -> None:
    arguments = _arguments()
    if arguments.point:
        print(f"answer {json.dumps(measured(Point(**json.loads(arguments.point))))}", flush=True)
        return
    lengths = [length for length in LENGTHS if length <= arguments.longest]
    with quiet_machine() if arguments.times else contextlib.nullcontext():
        rows = [
            _row(arm, mode, lengths, arguments)
            for mode in ("training", "inference")
            for arm in (ARMS if mode == "training" else ARMS[:-1])
        ]
    fingerprint = describe().fingerprint
    recall = RESULTS / "recall.json"  # of whatever machine, as times play no part in it
    parameters = sorted(row.pop("parameters") for row in rows)
    times = " --times" if arguments.times else ""
    report = {
        **circumstances(f"python benchmarks/memory_table.py --repeats {arguments.repeats}{times}"),
        "layers": LAYERS,
        "heads": HEADS,
        "width": WIDTH,
        "vocabulary": VOCABULARY,
        "segment": SEGMENT,
        "slots": SLOTS,
        "dtype": "float32",
        "parameters": [parameters[0], parameters[-1]],
        "longest_naive": LONGEST_NAIVE,
        "is_timed": arguments.times,
        "lengths": lengths,
        "rows": rows,
        "claimed": CLAIMED,
        "claims": claims(rows),
        "recall": remembered_at(
            json.loads(recall.read_text(encoding="utf-8")) if recall.is_file() else None,
            [length // SEGMENT for length in lengths],
        ),
    }
    print("\n".join(memory_lines(json.loads(json.dumps(report)))))
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / f"memory_table.{fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each point")
    parser.add_argument("--times", action="store_true", help="times too, on a quiet machine")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="leave out longer texts")
    parser.add_argument("--trial", action="store_true", help="try the script; write nothing")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(arm: str, mode: str, lengths: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one arm at all lengths."""
    points: dict[int, dict[str, Any]] = {}
    parameters = 0
    for length in lengths:
        if arm == NAIVE and length > LONGEST_NAIVE:
            continue
        found = [_in_a_process(Point(arm, mode, length)) for _ in range(arguments.repeats)]
        parameters = found[0]["parameters"]
        every = [one["bytes"] for one in found]
        points[length] = {"bytes": float(np.median(every)), "every": every}
        if arguments.times:
            timed = [_in_a_process(Point(arm, mode, length, is_timed=True)) for _ in range(arguments.repeats)]
            points[length]["seconds"] = float(np.median([one["seconds"] for one in timed]))
        print(f"{mode}, {arm}, {length:,} tokens: {points[length]['bytes'] / 1e6:,.1f} MB", file=sys.stderr)
    exponent, interval = power_law(points)
    row = {"arm": arm, "mode": mode, "exponent": exponent, "exponent_ci95": interval, "parameters": parameters}
    for length in lengths:
        if length not in points:
            longest = max(length for length, point in points.items() if "extrapolated" not in point)
            grown = points[longest]["bytes"] * (length / longest) ** exponent
            points[length] = {"bytes": grown, "extrapolated": True}
    return {**row, "points": {str(length): point for length, point in points.items()}}


def _in_a_process(point: Point) -> dict[str, Any]:
    command = [sys.executable, __file__, "--point", json.dumps(vars(point))]
    malloc = {} if point.is_timed else EXACT_MALLOC
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **malloc})
    answer = next(line for line in done.stdout.splitlines() if line.startswith("answer "))
    found: dict[str, Any] = json.loads(answer.removeprefix("answer "))
    return found


def power_law(points: dict[int, dict[str, Any]]) -> tuple[float, tuple[float, float]]:
    """Return the exponent of a power law through all measurements, and its 95 % interval.

    The interval is that of a bootstrap over lengths: it says how far the exponent depends on where it was measured.
    Resamples of a single length are left out. NaN where there are fewer than two lengths.
    """
    lengths = sorted(points)
    if len(lengths) < 2:
        return math.nan, (math.nan, math.nan)
    x = np.log(lengths)
    y = np.array([np.mean(np.log(points[length]["every"])) for length in lengths])
    exponent = float(np.polyfit(x, y, 1)[0])
    draw = np.random.default_rng(0)
    picks = [draw.integers(0, len(x), len(x)) for _ in range(_RESAMPLES)]
    found = [np.polyfit(x[pick], y[pick], 1)[0] for pick in picks if len(set(pick.tolist())) > 1]
    low, high = np.quantile(found, [0.025, 0.975])
    return exponent, (float(low), float(high))


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each arm with a bank, its memory beside naive attention's and SDPA's, and whether the guide is right.

    The guide is right where every ratio reaches the guide's.
    """
    found = {(row["arm"], row["mode"]): row["points"] for row in rows}
    told = []
    for (arm, mode), points in found.items():
        if arm in (NAIVE, SDPA):
            continue
        for over in (NAIVE, SDPA):
            of = found[over, mode]
            at = [length for length in CLAIMED if str(length) in points]
            ratios = [of[str(length)]["bytes"] / points[str(length)]["bytes"] for length in at]
            holds = [ratio >= CLAIMED[length] for ratio, length in zip(ratios, at, strict=True)]
            told.append({"arm": arm, "mode": mode, "over": over, "lengths": at, "ratios": ratios, "holds": holds})
    return told


if __name__ == "__main__":
    main()
