"""Trace one rank of each published run whose memory is known, beside the formulas and what was published, in GiB.

python benchmarks/planner_traces.py [--all] [--only NAME] [--write]

The trace runs PyTorch without torch.compile, so a compiled run is traced as its eager form, and the formulas are asked
for that form too: "off by" says how much more they say than the trace. --all takes all runs of PyTorch, also those
whose memory was not published. --write puts the figures into docs/results/planner_traces.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from planner_runs import GIB, Point, read_points

from whet.files import write_whole
from whet.planner.curves import fitted
from whet.planner.memory_trace import MemoryTrace
from whet.planner.predict import predict
from whet.planner.tracing.trace import trace_memory

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "planner_traces.json"
COLUMNS = (
    "run", "published", "formulas", "trace", "formulas, same form", "off by", "activations", "buffers", "seconds",
)  # fmt: skip


def row_of(point: Point, trace: MemoryTrace) -> dict[str, Any]:
    parts = {one.name: (one.traced, one.formula) for one in trace.parts}
    return {
        "name": point.name,
        "published": point.memory_gib,
        "predicted": predict(point.shape, point.cluster, point.layout, point.work).memory_total.value / GIB,
        "traced": None if trace.why_not else trace.total / GIB,
        "formula": trace.formula_total / GIB,
        "parts": {name: [None if one is None else one / GIB for one in both] for name, both in parts.items()},
        "why_not": trace.why_not,
        "differs": list(trace.differs),
        "phase": trace.phase,
        "seconds": trace.seconds,
    }


def traced(point: Point) -> dict[str, Any]:
    share = fitted(point.cluster, point.layout).constants.fragmentation
    return row_of(point, trace_memory(point.shape, point.layout, point.work, share))


def _figure(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}"


def cells(row: dict[str, Any]) -> list[str]:
    if row["why_not"]:
        return [row["name"], _figure(row["published"]), _figure(row["predicted"]), f"not traced: {row['why_not']}"]
    both = [f"{_figure(a)}, {_figure(b)}" for a, b in (row["parts"]["activations"], row["parts"]["buffers"])]
    return [
        row["name"],
        _figure(row["published"]),
        _figure(row["predicted"]),
        _figure(row["traced"]),
        _figure(row["formula"]),
        f"{row['formula'] / row['traced'] - 1:+.1%}",
        *both,
        f"{row['seconds']:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="also runs whose memory was not published")
    parser.add_argument("--only", help="runs whose names hold this")
    parser.add_argument("--write", action="store_true", help="write docs/results/planner_traces.json")
    asked = parser.parse_args()
    rows = []
    print(" | ".join(COLUMNS))
    for point in read_points():
        is_known = point.memory_gib is not None or (asked.all and point.layout.software.startswith("torch"))
        if is_known and (asked.only or "") in point.name:
            rows.append(traced(point))
            print(" | ".join(cells(rows[-1])), flush=True)
    if asked.write:
        write_whole(RESULTS, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
