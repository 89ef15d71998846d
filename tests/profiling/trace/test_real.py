"""Traces from real machines, against figures worked out the slow way: moments painted one by one, every pair tried."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from whet.profiling.bounds import Bound
from whet.profiling.trace.changes import Change, compare_traces
from whet.profiling.trace.gpu import Use
from whet.profiling.trace.report import TraceReport, analyse, analyse_file
from whet.profiling.trace.steps import window_of
from whet.profiling.trace.trace import read_trace

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "torch_traces"
SAMPLED, MI250, CPU = "sampled_rank-0", "mi250_minitoy_train_ROCm6_2_kineto", "cpu_only.pt.trace"
CUPTI, TRITON, BASE, TEST = "cupti_profiler", "triton_example", "compare_base", "compare_test"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/torch_traces is not here"),
]


def events_of(name: str) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))["traceEvents"]
    return [e for e in found if e.get("ph") == "X" and e["cat"] != "Trace"]


def report_of(name: str) -> TraceReport:
    return analyse_file(DATA / f"{name}.json.gz")


def painted(events: list[dict[str, Any]], first_us: float, window_ns: int) -> npt.NDArray[np.bool_]:
    """For every nanosecond of the window (at 100 ns, where it is long), whether one of the events runs."""
    grain_ns = 1 if window_ns < 20_000_000 else 100
    paint = np.zeros(window_ns // grain_ns, bool)
    for e in events:
        start = round((e["ts"] - first_us) * 1000) // grain_ns
        end = round((e["ts"] - first_us) * 1000 + e["dur"] * 1000) // grain_ns
        paint[max(0, start) : max(0, end)] = True
    return paint


@pytest.mark.parametrize("name", [SAMPLED, MI250, BASE, TEST])
def test_busy_time_and_overlap(name: str) -> None:
    events, found = events_of(name), report_of(name)
    first_us = min(e["ts"] for e in events if e["name"].startswith("ProfilerStep#"))
    (gpu,) = found.devices
    grain_ns = 1 if found.window_ns < 20_000_000 else 100  # these long ones are in whole microseconds
    device = [e for e in events if e["cat"] in ON_DEVICE]
    kernels = [e for e in device if e["cat"] == "kernel"]
    parts = {
        "busy": device,
        "compute": [e for e in kernels if "nccl" not in e["name"]],
        "communication": [e for e in kernels if "nccl" in e["name"]],
        "copy": [e for e in device if e["cat"] != "kernel"],
    }
    paint = {part: painted(some, first_us, found.window_ns) for part, some in parts.items()}
    lengths = {part: int(some.sum()) * grain_ns for part, some in paint.items()}
    assert lengths == {part: getattr(gpu, f"{part}_ns") for part in parts}
    hidden = [int((paint["compute"] & paint[part]).sum()) * grain_ns for part in ("communication", "copy")]
    assert hidden == [gpu.communication_hidden_ns, gpu.copy_hidden_ns]


@pytest.mark.parametrize("name", [SAMPLED, MI250, TRITON, BASE])
def test_launches(name: str) -> None:
    events, found = events_of(name), report_of(name).launches
    assert found is not None
    runtime = [e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")]
    calls = [e for e in runtime if "Launch" in e["name"]]
    kernels = [e for e in events if e["cat"] == "kernel"]
    pairs = [
        (call, kernel)
        for kernel in kernels
        for call in runtime
        if call["args"]["correlation"] == kernel["args"]["correlation"]
    ]
    delays = [kernel["ts"] - call["ts"] for call, kernel in pairs]
    assert (found.num_calls, found.num_kernels, found.num_matched) == (len(calls), len(kernels), len(pairs))
    assert found.call_total_ns / 1000 == pytest.approx(sum(e["dur"] for e in calls))
    assert (found.delay_median_ns or 0) / 1000 == pytest.approx(np.median(delays), abs=0.002)
    assert (found.delay_longest_ns or 0) / 1000 == pytest.approx(max(delays), abs=0.002)
    assert found.num_short == sum(kernel["dur"] < call["dur"] for call, kernel in pairs)


@pytest.mark.parametrize("name", [SAMPLED, MI250, CPU, CUPTI, TRITON, BASE, TEST])
def test_operators(name: str) -> None:
    """An event's parent is the shortest on its thread that is around it; of equal ones, the one written first."""
    events = [e for e in events_of(name) if e["cat"] in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")]
    start = np.array([e["ts"] for e in events])
    end = np.array([e["ts"] + e["dur"] for e in events])
    length = np.array([e["dur"] for e in events], float)
    thread = np.array([f"{e['pid']}/{e['tid']}" for e in events])
    is_call = np.array([e["cat"].startswith("cuda") for e in events])
    own = length.copy()
    for i in range(len(events)):
        around = (thread == thread[i]) & (start <= start[i]) & (end >= end[i] - 1e-4) & (end > start[i])
        same = around & (start == start[i]) & (length == length[i])
        first = np.where(is_call == is_call[i], np.arange(len(events)) < i, is_call[i])
        around &= ~same | first
        if around.any():
            candidates = np.flatnonzero(around)
            shortest = candidates[length[candidates] == length[candidates].min()]
            inner = shortest[is_call[shortest]] if is_call[shortest].any() else shortest
            own[inner[-1]] -= length[i]
    found = report_of(name)
    totals: dict[str, list[float]] = {}
    for e, self_us in zip(events, own, strict=True):
        if e["cat"] == "cpu_op":
            entry = totals.setdefault(e["name"], [0, 0.0, 0.0])
            entry[0] += 1
            entry[1] += e["dur"]
            entry[2] += self_us
    assert {o.name: o.calls for o in found.operators} == {n: entry[0] for n, entry in totals.items()}
    for o in found.operators:
        assert o.total_ns / 1000 == pytest.approx(totals[o.name][1], abs=0.01)
        assert o.self_ns / 1000 == pytest.approx(totals[o.name][2], abs=0.01)


def test_a_v100_rank_of_128() -> None:
    found = report_of(SAMPLED)
    assert (found.rank, found.world_size, found.num_events) == (0, 128, 4855)
    assert [step.number for step in found.steps] == [551, 552]
    slowest = found.kernels[0]
    assert slowest.name.startswith("ncclKernel_SendRecv") and slowest.use is Use.COMMUNICATION
    assert (slowest.calls, slowest.total_ns) == (10, 396_199_000)
    # every kernel's launch lies in an operator, so the operators' own GPU time is all of the GPU's
    outside_ns = sum(k.total_ns for k in found.kernels) - sum(o.gpu_self_ns for o in found.operators)
    assert 0 <= outside_ns < 0.05 * sum(k.total_ns for k in found.kernels)
    assert found.verdict.share == pytest.approx(0.315, abs=0.005)


def test_an_mi250() -> None:
    found = report_of(MI250)
    assert found.verdict.bound is Bound.LAUNCH
    assert found.launches is not None and found.launches.runtime[0].name == "hipLaunchKernel"
    assert any("warm-up" in note for note in found.notes)  # one launch took 6.5 ms
    assert [step.is_cut for step in found.steps] == [False, True]
    assert all(kernel.num_bytes is None for kernel in found.kernels)  # ROCm 6.2 does not say how much a copy moved


def test_a_cpu() -> None:
    found = report_of(CPU)
    assert found.devices == () and found.verdict.bound is Bound.COMMUNICATION
    (step,) = [e for e in events_of(CPU) if e["name"].startswith("ProfilerStep#")]
    gloo = painted([e for e in events_of(CPU) if e["name"].startswith("gloo:")], step["ts"], found.window_ns)
    assert found.verdict.share == pytest.approx(gloo.mean(), abs=1e-4)


def test_cupti_ranges_hold_no_times() -> None:
    found = report_of(CUPTI)
    assert found.verdict.bound is Bound.UNKNOWN
    assert any("77 kernels are CUPTI counter ranges" in note for note in found.notes)


def test_a_step_of_another_process_is_left_out() -> None:
    found = report_of(TRITON)
    assert found.steps == () and found.window_ns < 2_000_000
    assert [(k.name, k.total_ns) for k in found.kernels] == [("triton_poi_fused_add_cos_sin_0", 1760)]


def test_changes() -> None:
    changes = compare_traces(report_of(BASE), report_of(TEST))
    before, after = ({e["name"] for e in events_of(name) if e["cat"] == "cpu_op"} for name in (BASE, TEST))
    assert {o.name for o in changes.operators if o.change is Change.ADDED} == after - before
    assert {o.name for o in changes.operators if o.change is Change.REMOVED} == before - after
    (kernel,) = [k for k in changes.kernels if k.change is not Change.SAME]
    assert "CUDAFunctor_add<int>" in kernel.name  # it ran three times, and then twice
    assert (kernel.before_calls * 2, kernel.after_calls * 2) == (3, 2)


@pytest.mark.parametrize("name", [SAMPLED, MI250, CPU, CUPTI, TRITON, BASE, TEST])
def test_every_trace_adds_up(name: str) -> None:
    trace = read_trace(DATA / f"{name}.json.gz")
    found = analyse(trace)
    assert sum(share.time_ns for share in found.account) == found.window_ns == window_of(trace).length_ns
    json.dumps(found.summary(), allow_nan=False)


def test_a_copy_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (DATA / f"{MI250}.json.gz").read_bytes()
    text = gzip.decompress(whole)
    path = tmp_path / "cut.json"
    for data in [whole[:at] for at in range(0, len(whole), 211)] + [text[:at] for at in range(0, len(text) - 2, 2999)]:
        path.write_bytes(data)
        with pytest.raises(Exception, match=r"is cut off|is empty|only whitespace") as raised:
            read_trace(path)
        assert type(raised.value).__name__ == "TraceError"
