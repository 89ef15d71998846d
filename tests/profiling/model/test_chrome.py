"""The trace file: gzip, readable, and small enough."""

import gzip
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.profiling.model.chrome import shortened, trace_bytes
from whet.profiling.model.operators import start_tracer, stop_tracer


def stopped() -> torch.profiler.profile:
    tracer = start_tracer(cuda=False)
    x = torch.randn(32, 32)
    for _ in range(20):
        x = (x @ x).relu()
    stop_tracer(tracer)
    return tracer


def unpacked(data: bytes) -> Any:
    return json.loads(gzip.decompress(data))


def test_a_whole_trace() -> None:
    packed, lost = trace_bytes(stopped())
    assert lost == 0
    names = [event.get("name") for event in unpacked(packed)["traceEvents"]]
    assert names.count("aten::mm") == 20


@pytest.mark.parametrize("limits", [{"most_bytes": 2500}, {"most_plain_bytes": 20_000}])
def test_one_too_large_loses_its_shortest_events(limits: dict[str, int]) -> None:
    packed, lost = trace_bytes(stopped(), **limits)
    trace = unpacked(packed)
    assert lost == trace["whet_events_left_out"] > 0
    assert len(packed) <= limits.get("most_bytes", 10**9)
    assert len(gzip.decompress(packed)) <= limits.get("most_plain_bytes", 10**9)
    assert any(event.get("ph") == "M" for event in trace["traceEvents"])  # the threads keep their names


@given(durations=st.lists(st.floats(0, 1e6), min_size=1, max_size=200), most_bytes=st.integers(300, 3000))
def test_what_stays_is_the_longest(durations: list[float], most_bytes: int) -> None:
    events = [{"ph": "X", "ts": i, "dur": dur, "name": f"op {i}"} for i, dur in enumerate(durations)]
    packed, lost = shortened({"traceEvents": [*events, {"ph": "f", "ts": 1}]}, 1.0, most_bytes)
    kept = unpacked(packed)["traceEvents"]
    assert len(kept) + lost == len(events) + 1
    assert len(packed) <= most_bytes or not kept
    gone = sorted(durations, reverse=True)[len(kept) :]
    assert min((e["dur"] for e in kept), default=1e9) >= max(gone, default=0.0)
