"""Reading traces: what is kept of an event, and what is said of files that are damaged or something else."""

import bz2
import gzip
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import TraceError, WhetError
from whet.profiling.trace.report import analyse
from whet.profiling.trace.trace import NONE, Kind, Trace, read_trace

MM = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 4203669604595.407, "dur": 340.024,
    "args": {"External id": 3},
}  # fmt: skip
LAUNCH = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8, "ts": 4203669604600.001,
    "dur": 4.5, "args": {"correlation": 11},
}  # fmt: skip
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "void gemm<float>(int)", "pid": 0, "tid": 7, "ts": 4203669604700, "dur": 20,
    "args": {"device": 0, "stream": 7, "correlation": 11},
}  # fmt: skip
COPY = KERNEL | {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "args": {"device": 0, "stream": 9, "bytes": 4096}}
EVENTS = [{"ph": "M", "name": "process_name"}, MM, LAUNCH, KERNEL, COPY]


def written(path: Path, content: Any, *, packed: bool = False) -> Path:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [{"traceEvents": EVENTS}, EVENTS], ids=["object", "array"])
def test_events_become_columns(tmp_path: Path, content: Any, packed: bool) -> None:
    trace = read_trace(written(tmp_path / "trace.json", content, packed=packed))
    events = trace.events
    assert [Kind(kind) for kind in events.kind] == [Kind.OPERATOR, Kind.RUNTIME, Kind.KERNEL, Kind.COPY]
    assert [trace.names[name] for name in events.name] == [e["name"] for e in (MM, LAUNCH, KERNEL, COPY)]
    assert events.start_ns.tolist() == [0, 4594, 104593, 104593]  # to the nanosecond, from the first event on
    assert events.duration_ns.tolist() == [340024, 4500, 20000, 20000]
    assert events.correlation.tolist() == [NONE, 11, 11, NONE]
    assert events.num_bytes.tolist() == [NONE, NONE, NONE, 4096]
    lanes = [trace.lanes[lane] for lane in events.lane]
    assert [(lane.process, lane.thread, lane.on_device) for lane in lanes] == [
        ("7", "8", False), ("7", "8", False), ("0", "7", True), ("0", "9", True),
    ]  # fmt: skip
    assert trace.num_seen == 5


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_any_layout_of_the_json(tmp_path: Path, indent: int | None) -> None:
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {"rank": 3, "world_size": 8},
        "traceEvents": EVENTS,
        "traceName": 'a "quoted" \\ name',
    }
    text = json.dumps(content, indent=indent)
    trace = read_trace(written(tmp_path / "trace.json", b"\xef\xbb\xbf" + text.encode() + b"\n\n"))
    assert len(trace.events) == 4
    assert trace.device_names == {"0": "NVIDIA H100"}
    assert (trace.rank, trace.world_size) == (3, 8)


def test_names_of_older_and_other_devices(tmp_path: Path) -> None:
    categories = ["Operator", "Kernel", "Memcpy", "Memset", "Runtime", "cuda_driver", "xpu_runtime", "no such category"]
    trace = read_trace(written(tmp_path / "t.json", [MM | {"cat": category} for category in categories]))
    assert [Kind(kind) for kind in trace.events.kind] == [
        Kind.OPERATOR, Kind.KERNEL, Kind.COPY, Kind.FILL, Kind.RUNTIME, Kind.RUNTIME, Kind.RUNTIME,
    ]  # fmt: skip


def test_events_without_usable_times_are_counted_and_left_out(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"ts": None}, {"ts": "12"}, {"dur": -1}, {"dur": True}, {"ts": 1e300}, {"dur": 10**400}, {"name": 4},
        {"ts": float("nan")}, {"dur": float("inf")}, {"args": [1]}, {"args": {"correlation": "x", "bytes": 2**70}},
    ]  # fmt: skip
    content = {"traceEvents": [MM | change for change in odd] + [1, "text", None, [], {"ph": "X", "cat": ["cpu_op"]}]}
    trace = read_trace(written(tmp_path / "t.json", content))
    assert trace.num_damaged == 9
    assert len(trace.events) == 2  # odd arguments are no reason to drop an event
    assert trace.events.correlation.tolist() == trace.events.num_bytes.tolist() == [NONE, NONE]
    assert any("9 events" in note for note in analyse(trace).notes)


def test_python_functions_are_only_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t.json", [MM, *[MM | {"cat": "python_function"}] * 3]))
    assert (len(trace.events), trace.num_python) == (1, 3)


WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS * 20, "traceName": "x"}, indent=1).encode()
CUT = WHOLE[:-2000]
BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"  \n ", "only whitespace"),
    "text": (b"hello, this is no trace", "is not JSON"),
    "braces": (b"{hello}", "is not JSON"),
    "binary": (bytes(range(256)) * 10, "is not JSON"),
    "number": (b"12", "is not JSON"),
    "no traceEvents": ({"a": 1, "b": {"traceEvents": []}}, "without traceEvents (it holds 'a', 'b')"),
    "empty object": ({}, "without traceEvents"),
    "traceEvents is no array": ({"traceEvents": {"a": 1}}, "without traceEvents"),
    "no events": ({"traceEvents": []}, "none of its 0 events is PyTorch's"),
    "a browser's trace": ({"traceEvents": [MM | {"cat": "devtools.timeline"}] * 3}, "none of its 3 events"),
    "list of numbers": ([1, 2, 3], "none of its 3 events"),
    "cut off": (CUT, f"is cut off after {sum(line in (b'  },', b'  }') for line in CUT.splitlines())} events"),
    "cut off in the head": (b'{"schemaVersion": 1, "traceEv', "is cut off"),
    "two in one": (WHOLE + WHOLE, "goes on after the end"),
    "comma missing": (WHOLE.replace(b'"dur": 20,', b'"dur": 20', 1), "is damaged"),
    "deep": (b"[" * 200_000, "nests its JSON too deeply"),
    "long number": (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "is damaged"),
    "gzip cut off": (gzip.compress(WHOLE)[:-30], "cut off"),
    "gzip damaged": (gzip.compress(WHOLE)[:200] + b"\0" * 50 + gzip.compress(WHOLE)[250:], "damaged"),
    "gzip with a wrong checksum": (gzip.compress(WHOLE)[:-8] + b"\1" * 8, "damaged"),
    "gzip of nothing": (gzip.compress(b""), "only whitespace"),
    "gzip of text": (gzip.compress(b"hello"), "is not JSON"),
    "gzip's head alone": (gzip.compress(b"")[:5], "cut off"),
    "zip": (b"PK\x03\x04" + b"\0" * 50, "zip archive"),
    "bzip2": (bz2.compress(WHOLE), "bzip2"),
    "xz": (lzma.compress(WHOLE), "xz"),
    "nsys": (b"SQLite format 3\0" + b"\0" * 50, "nsys"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_clear_line(tmp_path: Path, name: str) -> None:
    content, expected = BAD[name]
    path = written(tmp_path / "bad.json", content)
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    message = str(raised.value)
    assert expected in message
    assert message.startswith((f"{path} ", f"{path}: "))
    assert "\n" not in message and message.isprintable()
    assert len(message) < len(str(path)) + 250


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(TraceError, match="a directory"):
        read_trace(tmp_path)
    if Path("/dev/zero").exists():
        with pytest.raises(TraceError, match="no regular file"):
            read_trace("/dev/zero")


def test_values_longer_than_a_chunk(tmp_path: Path) -> None:
    long = MM | {"args": {"Call stack": "é" * 3_000_000}}
    trace = read_trace(written(tmp_path / "t.json", json.dumps([MM, long, MM], ensure_ascii=False).encode()))
    assert len(trace.events) == 3
    endless = written(tmp_path / "endless.json", b'{"a": "' + b"x" * 140_000_000)
    with pytest.raises(TraceError, match="single value of more than 64 MB"):
        read_trace(endless)


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    stack = {"args": {"Call stack": "frame;" * 1000}}
    text = ",".join(json.dumps(MM | stack | {"ts": i, "dur": 1}) for i in range(10_000))
    path = written(tmp_path / "t.json", f'{{"traceEvents": [{text}]}}'.encode())
    del text
    assert path.stat().st_size > 60_000_000
    tracemalloc.start()
    trace = read_trace(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace.events) == 10_000
    assert peak_bytes < 15_000_000


def analysed(path: Path) -> Trace | str:
    """The trace, or the one line that says why there is none."""
    try:
        trace = read_trace(path)
    except WhetError as error:
        assert isinstance(error, TraceError)
        assert "\n" not in str(error) and str(error).isprintable()
        return str(error)
    report = analyse(trace)
    json.dumps(report.summary(), allow_nan=False)
    assert report.verdict.sentence
    return trace


patient = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


@patient
@given(cut=st.integers(0, len(WHOLE) - 1), packed=st.booleans())
def test_a_cut_off_file_is_never_taken_for_whole(tmp_path: Path, cut: int, packed: bool) -> None:
    whole = gzip.compress(WHOLE) if packed else WHOLE
    path = written(tmp_path / "cut.json", whole[: cut * len(whole) // len(WHOLE)])
    found = analysed(path)
    assert isinstance(found, str)
    assert packed or cut < 20 or "cut off" in found or "is empty" in found


@patient
@given(at=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255), length=st.integers(1, 40), packed=st.booleans())
def test_damage_is_refused_or_harmless(tmp_path: Path, at: int, byte: int, length: int, packed: bool) -> None:
    damaged = bytearray(gzip.compress(WHOLE) if packed else WHOLE)
    at = at * len(damaged) // len(WHOLE)
    damaged[at : at + length] = bytes([byte]) * min(length, len(damaged) - at)
    assert isinstance(analysed(written(tmp_path / "damaged.json", bytes(damaged))), Trace | str)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.just("X") | json_values,
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation"]) | json_values,
        "name": st.sampled_from(["aten::mm", "ProfilerStep#1", "cudaLaunchKernel", "nccl"]) | st.text(max_size=6),
        "ts": st.integers(0, 30) | st.floats() | json_values,
        "dur": st.integers(0, 9) | json_values,
        "pid": st.integers(0, 1) | json_values,
        "tid": st.integers(0, 1) | json_values,
        "args": st.dictionaries(st.sampled_from(["correlation", "bytes", "stream"]), st.integers(0, 3) | json_values),
    },
)


@patient
@given(st.lists(fields | json_values, max_size=12), st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_any_json_is_read_or_refused(tmp_path: Path, events: list[Any], header: dict[str, Any]) -> None:
    found = analysed(written(tmp_path / "any.json", header | {"traceEvents": events}))
    assert isinstance(found, Trace | str)


@patient
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    assert isinstance(analysed(written(tmp_path / "any.json", data)), str)


@patient
@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=20), st.floats(0, 4e12))
def test_times_come_back_to_the_nanosecond(tmp_path: Path, times: list[tuple[int, int]], base_us: float) -> None:
    base_ns = round(base_us) * 1000
    text = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"x","pid":1,"tid":1,"ts":{(base_ns + s) // 1000}.{(base_ns + s) % 1000:03d},'
        f'"dur":{d // 1000}.{d % 1000:03d}}}'
        for s, d in times
    )
    events = read_trace(written(tmp_path / "t.json", f"[{text}]".encode())).events
    starts = np.array([start for start, _ in times])
    assert events.start_ns.tolist() == (starts - starts.min()).tolist()
    assert events.duration_ns.tolist() == [duration for _, duration in times]
