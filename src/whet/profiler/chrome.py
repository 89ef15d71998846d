"""The trace as a file for ui.perfetto.dev and chrome://tracing: gzip, and never too large to be opened."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

MOST_BYTES = 45_000_000  # compressed; viewers give up not far above
_MOST_PLAIN_BYTES = 450_000_000  # what a browser can hold of it unpacked
FILE = "trace.json.gz"


def trace_bytes(
    tracer: torch.profiler.profile, *, most_bytes: int = MOST_BYTES, most_plain_bytes: int = _MOST_PLAIN_BYTES
) -> tuple[bytes, int]:
    """A stopped tracer's trace, compressed, and how many events had to go to keep it small: the shortest ones.

    PyTorch writes a trace once only: keep what this returns.
    """
    with tempfile.TemporaryDirectory(prefix="whet-trace-") as folder:
        path = Path(folder) / "trace.json"
        tracer.export_chrome_trace(str(path))
        plain = path.read_bytes()
    packed = gzip.compress(plain, compresslevel=6, mtime=0)
    if len(packed) <= most_bytes and len(plain) <= most_plain_bytes:
        return packed, 0
    keep = min(most_bytes / len(packed), most_plain_bytes / len(plain))
    return shortened(json.loads(plain), keep * 0.9, most_bytes)


def shortened(trace: dict[str, Any], keep: float, most_bytes: int) -> tuple[bytes, int]:
    """A trace with its longest events only, compressed to at most `most_bytes`, and how many were left out.

    keep: the share of the events to begin with. Names of threads and processes stay; arrows and counters go.
    """
    events = trace["traceEvents"]
    spans = sorted((e for e in events if _is_span(e)), key=lambda e: -float(e["dur"]))
    always = [e for e in events if e.get("ph") == "M"]
    while True:
        num_kept = int(len(spans) * keep)
        kept = sorted([*always, *spans[:num_kept]], key=lambda e: float(e.get("ts", 0)))
        lost = len(events) - len(kept)
        note = {"whet_events_left_out": lost}
        packed = gzip.compress(json.dumps({**trace, **note, "traceEvents": kept}).encode(), compresslevel=6, mtime=0)
        if len(packed) <= most_bytes or not num_kept:
            return packed, lost
        keep *= 0.9 * most_bytes / len(packed)


def _is_span(event: dict[str, Any]) -> bool:
    return event.get("ph") == "X" and "dur" in event
