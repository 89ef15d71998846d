"""How fast whet reads traces: `python benchmarks/trace_reading.py [--events 100000] [--megabytes 200]`.

The trace is a real one, recorded by torch.profiler here (a small training loop on the CPU, with shapes), repeated with
later times until it holds enough events. Each file is read and analysed in a process of its own, whose wall time and
peak memory are reported; whet's own import is part of neither.
"""

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHILD = """
import sys, time
from whet.measure.memory import peak_rss_bytes, reset_peak_rss
from whet.traces.trace import read_trace
from whet.traces.report import analyse
reset_peak_rss()
before = peak_rss_bytes()
start = time.perf_counter()
trace = read_trace(sys.argv[1])
read = time.perf_counter()
analyse(trace)
end = time.perf_counter()
print(trace.num_seen, read - start, end - read, (peak_rss_bytes() - before) / 2**20)
"""


def record(path: Path) -> dict[str, Any]:
    """Record twenty steps of a small training loop and read the trace back as JSON."""
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile

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


def measure(path: Path, repeats: int) -> tuple[int, float, float, float]:
    """Events, seconds to read, seconds to analyse, and MiB of memory above the start; of the fastest run."""
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, check=True, env=os.environ
        )
        num_events, read_s, analyse_s, memory = done.stdout.split()
        runs.append((int(num_events), float(read_s), float(analyse_s), float(memory)))
    return min(runs, key=lambda run: run[1] + run[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--megabytes", type=int, default=200, help="of one more, large trace; 0 leaves it out")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        with contextlib.redirect_stderr(None):
            trace = record(Path(directory) / "recorded.json")
        files = [Path(directory) / "trace.json", Path(directory) / "trace.json.gz"]
        for path in files:
            write(path, trace, num_events=options.events)
        if options.megabytes:
            files.append(Path(directory) / "large.json")
            write(files[-1], trace, num_bytes=options.megabytes * 10**6)
        print(
            f"{'file':<16}{'size':>9}{'events':>10}{'read':>9}{'analyse':>9}{'whole':>9}{'events/s':>11}{'memory':>10}"
        )
        for path in files:
            num_events, read_s, analyse_s, memory = measure(path, options.repeats)
            whole_s = read_s + analyse_s
            size_mb = path.stat().st_size / 1e6
            print(
                f"{path.name:<16}{size_mb:>6.1f} MB{num_events:>10,}{read_s:>7.2f} s{analyse_s:>7.2f} s"
                f"{whole_s:>7.2f} s{num_events / whole_s:>11,.0f}{memory:>6.0f} MiB"
            )


if __name__ == "__main__":
    main()
