"""How fast whet reads traces.

    python benchmarks/trace_reading.py [--events 100000] [--megabytes 200]     # writes docs/results/trace_reading.json

The trace is a real one, recorded by torch.profiler here (a small training loop on the CPU, with shapes), repeated with
later times until it holds enough events: plain, packed with gzip, and one large plain file. Each is read and analysed
in a process of its own, the best of three; whet's own import is no part of its time or memory. Beside it stands what
json.load alone takes of the same file.
"""

import argparse
import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from circumstances import circumstances
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

from whet.files import write_whole

RESULT = Path(__file__).parents[1] / "docs" / "results" / "trace_reading.json"
TARGET_S = 3.0  # for 100,000 events

_WHET = """
import sys, time
from whet.measure.memory import peak_rss_bytes, reset_peak_rss
from whet.profiling.trace.trace import read_trace
from whet.profiling.trace.report import analyse
reset_peak_rss()
before = peak_rss_bytes()
start = time.perf_counter()
trace = read_trace(sys.argv[1])
read = time.perf_counter()
analyse(trace)
end = time.perf_counter()
print(trace.num_seen, read - start, end - read, peak_rss_bytes() - before)
"""
_JSON = """
import gzip, json, sys, time
from whet.measure.memory import peak_rss_bytes, reset_peak_rss
reset_peak_rss()
before = peak_rss_bytes()
start = time.perf_counter()
with gzip.open(sys.argv[1]) if sys.argv[1].endswith(".gz") else open(sys.argv[1], "rb") as file:
    events = json.load(file)["traceEvents"]
print(len(events), time.perf_counter() - start, 0.0, peak_rss_bytes() - before)
"""


def record(path: Path) -> dict[str, Any]:
    """Record twenty steps of a small training loop and read the trace back as JSON."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(20):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                profiler.step()
        profiler.export_chrome_trace(str(path))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def repeated(trace: dict[str, Any]) -> Iterator[str]:
    """The recorded events as torch.profiler lays them out, again and again, each time later."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["cat"] != "Trace"]
    first = min(event["ts"] for event in events)
    span = max(event["ts"] + event["dur"] for event in events) - first + 100
    number = 0
    while True:
        for event in events:
            shifted = event | {"ts": round(event["ts"] - first + number * span, 3)}
            yield "\n  " + json.dumps(shifted, indent=2).replace("\n", "\n  ")
        number += 1


def write(path: Path, trace: dict[str, Any], *, num_events: int | None = None, num_bytes: int | None = None) -> int:
    """Write a trace of so many events, or so many bytes of text. Returns the number of events."""
    count = size = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        for text in repeated(trace):
            file.write("," * (count > 0) + text)
            count += 1
            size += len(text) + 1
            if count == num_events or (num_bytes is not None and size >= num_bytes):
                break
        file.write("\n]}")
    return count


def run(code: str, path: Path, repeats: int) -> tuple[int, float, float, int]:
    """Events, seconds to read, seconds to analyse, and bytes of memory above the start; of the fastest run."""
    runs = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        num_events, read_s, analyse_s, num_bytes = done.stdout.split()
        runs.append((int(num_events), float(read_s), float(analyse_s), int(num_bytes)))
    return min(runs, key=lambda run: run[1] + run[2])


def measure(path: Path, repeats: int) -> dict[str, Any]:
    """One file's row."""
    num_events, read_s, analyse_s, peak_bytes = run(_WHET, path, repeats)
    _, json_s, _, json_bytes = run(_JSON, path, repeats)
    return {
        "file": path.name,
        "size_bytes": path.stat().st_size,
        "num_events": num_events,
        "read_s": read_s,
        "analyse_s": analyse_s,
        "peak_bytes": peak_bytes,
        "json_load_s": json_s,
        "json_load_peak_bytes": json_bytes,
    }


def files(directory: Path, num_events: int, megabytes: int) -> Iterator[Path]:
    """The traces that are read, made one after the other."""
    with contextlib.redirect_stderr(None):
        trace = record(directory / "recorded.json")
    for name in ("trace.json", "trace.json.gz"):
        write(directory / name, trace, num_events=num_events)
        yield directory / name
    if megabytes:
        write(directory / "large.json", trace, num_bytes=megabytes * 10**6)
        yield directory / "large.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=200, help="of one more, large trace; 0 leaves it out")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = files(Path(directory), options.events, options.megabytes)
        with quiet_machine():
            rows = [measure(path, options.repeats) for path in paths]
    given = f"--events {options.events} --megabytes {options.megabytes} --repeats {options.repeats}"
    report: dict[str, Any] = {
        **circumstances(f"python benchmarks/trace_reading.py {given}"),
        "repeats": options.repeats,
        "target_s": TARGET_S,
        "files": rows,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")
    show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table()
    for name in ("file", "size", "events", "read, analysed", "memory", "json.load", "memory"):
        table.add_column(name, justify="left" if name == "file" else "right")
    for row in rows:
        table.add_row(
            row["file"],
            f"{row['size_bytes'] / 1e6:.1f} MB",
            f"{row['num_events']:,}",
            f"{row['read_s']:.2f} + {row['analyse_s']:.2f} s",
            f"{row['peak_bytes'] / 1e6:.0f} MB",
            f"{row['json_load_s']:.2f} s",
            f"{row['json_load_peak_bytes'] / 1e6:.0f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
