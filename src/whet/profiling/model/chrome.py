"""Write a trace as a gzip file that is small enough for ui.perfetto.dev and chrome://tracing to open."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

MOST_BYTES = 45_000_000  # compressed; viewers fail on files not much larger
_MOST_PLAIN_BYTES = 450_000_000  # uncompressed; a browser cannot hold much more
FILE = "trace.json.gz"


def trace_bytes(
    tracer: torch.profiler.profile, *, most_bytes: int = MOST_BYTES, most_plain_bytes: int = _MOST_PLAIN_BYTES
) -> tuple[bytes, int]:
    """Compress the trace of a stopped tracer. A trace that is too large keeps its longest events only.

    PyTorch writes a trace once only, so a second call with the same tracer fails: keep the result.

    Returns:
        The gzip file's content, and the number of events that were left out.
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
    """Compress a trace in Chrome's JSON format to at most `most_bytes` by keeping its longest events only.

    The names of threads and processes are always kept. Arrows and counters are always dropped. `keep` is the share of
    the events to try first, 0 to 1; it shrinks until the result is small enough.

    Returns:
        The gzip file's content, and the number of events that were left out.
    """
    events = trace["traceEvents"]
    spans = sorted((e for e in events if e.get("ph") == "X" and "dur" in e), key=lambda e: -float(e["dur"]))
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
