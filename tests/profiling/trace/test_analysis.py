"""What a trace says: small traces made by hand with figures worked out beside them, and what holds for every trace."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.profiling.bounds import Bound
from whet.profiling.trace.account import TimeCategory
from whet.profiling.trace.gpu import Use, short_name
from whet.profiling.trace.operators import call_tree
from whet.profiling.trace.report import TraceReport, analyse
from whet.profiling.trace.trace import NONE, Kind, Trace, read_trace

US = 1000
MAIN, AUTOGRAD = 1, 2  # threads


def event(category: str, name: str, start_us: float, dur_us: float, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 100, "tid": tid, "ts": start_us, "dur": dur_us, "args": args
    }  # fmt: skip


def op(name: str, start_us: float, dur_us: float, tid: int = MAIN) -> dict[str, Any]:
    return event("cpu_op", name, start_us, dur_us, tid)


def note(name: str, start_us: float, dur_us: float, tid: int = MAIN) -> dict[str, Any]:
    return event("user_annotation", name, start_us, dur_us, tid)


def launch(start_us: float, dur_us: float, correlation: int, tid: int = MAIN) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", start_us, dur_us, tid, correlation=correlation)


def kernel(name: str, start_us: float, dur_us: float, correlation: int = 0, stream: int = 7) -> dict[str, Any]:
    return event("kernel", name, start_us, dur_us, device=0, stream=stream, correlation=correlation)


def copy(start_us: float, dur_us: float, num_bytes: int = 1000, stream: int = 9) -> dict[str, Any]:
    return event("gpu_memcpy", "Memcpy HtoD", start_us, dur_us, device=0, stream=stream, bytes=num_bytes)


def traced(tmp_path: Path, events: list[dict[str, Any]]) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_trace(path)


def report(tmp_path: Path, events: list[dict[str, Any]]) -> TraceReport:
    return analyse(traced(tmp_path, events))


def shares(found: TraceReport) -> dict[TimeCategory, float]:
    return {share.entry: share.time_ns / US for share in found.account}


# 1000 µs: two kernels that overlap (100-300, 200-400), a collective (350-700, 50 of it beside compute), a copy
# (650-800, 50 of it beside the collective), then nothing until the end of the last operator.
GPU = [
    op("aten::mm", 0, 1000),
    kernel("void gemm(int)", 100, 200),
    kernel("void gemm(int)", 200, 200, stream=8),
    kernel("ncclDevKernel_AllReduce_Sum_f32(x)", 350, 350, stream=9),
    copy(650, 150, num_bytes=300_000, stream=10),
]


def test_busy_idle_and_overlap_by_hand(tmp_path: Path) -> None:
    found = report(tmp_path, GPU)
    (gpu,) = found.devices
    assert (gpu.device, gpu.num_streams) == ("0", 4)
    assert (gpu.window_ns, gpu.busy_ns, gpu.idle_ns) == (1000 * US, 700 * US, 300 * US)
    assert (gpu.compute_ns, gpu.communication_ns, gpu.copy_ns) == (300 * US, 350 * US, 150 * US)
    assert (gpu.communication_hidden_ns, gpu.copy_hidden_ns) == (50 * US, 0)
    assert shares(found) == {
        TimeCategory.KERNELS: 300, TimeCategory.COMMUNICATION: 300, TimeCategory.COPIES: 100,
        TimeCategory.LAUNCHING: 300,
    }  # fmt: skip


def test_kernels_by_name(tmp_path: Path) -> None:
    found = {time.name: time for time in report(tmp_path, GPU).kernels}
    assert list(found) == ["void gemm(int)", "ncclDevKernel_AllReduce_Sum_f32(x)", "Memcpy HtoD"]
    gemm, nccl, moved = found.values()
    assert (gemm.use, gemm.calls, gemm.total_ns, gemm.longest_ns) == (Use.COMPUTE, 2, 400 * US, 200 * US)
    assert (nccl.use, nccl.num_bytes) == (Use.COMMUNICATION, None)
    assert (moved.use, moved.num_bytes) == (Use.COPY, 300_000)
    assert moved.bytes_per_s == pytest.approx(300_000 / 150e-6)


def test_launches_by_hand(tmp_path: Path) -> None:
    events = [
        launch(0, 10, 1), kernel("a", 8, 4, 1),  # starts within its call, and is shorter
        launch(20, 10, 2), kernel("b", 50, 100, 2),
        event("cuda_driver", "cuLaunchKernel", 40, 6, correlation=3), kernel("triton", 150, 3, 3),
        event("cuda_runtime", "cudaGraphLaunch", 60, 30, correlation=4),
        kernel("c", 160, 5, 4), kernel("d", 165, 50, 4),
        kernel("lost", 300, 5, 99),  # its launch is not in the trace
        launch(310, 10, 5), kernel("early", 305, 20, 5),  # before its own launch: clocks disagree
        event("cuda_runtime", "cudaDeviceSynchronize", 330, 70),
        event("cuda_runtime", "cudaMalloc", 400, 7, correlation=6),
    ]  # fmt: skip
    found = report(tmp_path, events).launches
    assert found is not None
    assert (found.num_calls, found.call_total_ns) == (5, 66 * US)
    assert (found.call_median_ns, found.call_longest_ns) == (10 * US, 30 * US)
    assert (found.num_kernels, found.num_matched, found.num_early) == (7, 6, 1)
    assert found.num_short == 3  # a, triton and c
    assert found.delay_median_ns == 65 * US  # of -5, 8, 30, 100, 105, 110
    assert found.delay_longest_ns == 110 * US
    assert (found.num_waits, found.wait_total_ns) == (1, 70 * US)
    assert [(call.name, call.calls, call.total_ns / US) for call in found.runtime] == [
        ("cudaDeviceSynchronize", 1, 70), ("cudaGraphLaunch", 1, 30), ("cudaLaunchKernel", 3, 30), ("cudaMalloc", 1, 7),
        ("cuLaunchKernel", 1, 6),
    ]  # fmt: skip


def test_a_correlation_that_two_processes_share_links_nothing(tmp_path: Path) -> None:
    events = [launch(0, 10, 1), launch(2, 10, 1) | {"pid": 200}, kernel("a", 20, 5, 1)]
    found = report(tmp_path, events).launches
    assert found is not None and found.num_matched == 0
    nested = [launch(0, 10, 1), event("cuda_driver", "cuLaunchKernel", 2, 5, correlation=1), kernel("a", 20, 5, 1)]
    found = report(tmp_path, nested).launches
    assert found is not None and (found.num_matched, found.delay_median_ns) == (1, 20 * US)


def test_operators_by_hand(tmp_path: Path) -> None:
    events = [
        op("aten::linear", 0, 100),
        op("aten::addmm", 10, 60),
        launch(40, 20, 1),
        kernel("gemm", 100, 500, 1),
        note("## loss ##", 72, 20),
        op("aten::addmm", 75, 5),
        op("aten::linear", 200, 10),
        op("AddmmBackward0", 50, 30, AUTOGRAD),  # beside the others, inside none of them
        launch(60, 5, 2, AUTOGRAD),
        kernel("gemm_backward", 700, 100, 2),
    ]
    found = report(tmp_path, events)
    times = {
        o.name: tuple(t / US for t in (o.self_ns, o.total_ns, o.gpu_self_ns, o.gpu_total_ns)) for o in found.operators
    }
    assert times == {
        "aten::linear": (30, 110, 0, 500),  # 100 - 60 - 20 and 10
        "aten::addmm": (45, 65, 500, 500),
        "AddmmBackward0": (25, 30, 100, 100),
    }
    assert [(o.name, o.calls) for o in found.operators] == [
        ("aten::addmm", 2),
        ("aten::linear", 2),
        ("AddmmBackward0", 1),
    ]
    (loss,) = found.annotations
    assert (loss.self_ns, loss.total_ns, loss.gpu_total_ns) == (15 * US, 20 * US, 0)


def test_an_annotation_has_the_gpu_time_of_all_inside_it(tmp_path: Path) -> None:
    events = [note("forward", 0, 100), op("aten::mm", 10, 50), launch(20, 5, 1), kernel("gemm", 90, 70, 1)]
    (forward,) = report(tmp_path, events).annotations
    assert (forward.self_ns, forward.gpu_total_ns) == (50 * US, 70 * US)


def test_cpu_busy_and_waiting(tmp_path: Path) -> None:
    events = [
        op("aten::item", 0, 100),
        event("cuda_runtime", "cudaStreamSynchronize", 20, 60),
        op("backward", 50, 100, AUTOGRAD),
        op("aten::mm", 190, 10),
        kernel("gemm", 0, 10),
    ]
    found = report(tmp_path, events)
    assert {use.thread: (use.busy_ns / US, use.waiting_ns / US) for use in found.threads} == {
        "1": (50, 60),
        "2": (100, 0),
    }
    assert found.cpu_busy_ns == (20 + 100 + 10) * US  # 0-20, 50-150 of either thread, 190-200


STEPS = [
    note("ProfilerStep#4", 0, 100), note("ProfilerStep#5", 100, 200), note("ProfilerStep#6", 300, 5),
    note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30),
    op("aten::mm", 30, 20), launch(40, 5, 1), kernel("gemm", 60, 60, 1),
    op("aten::mm", 200, 20), launch(205, 5, 2), kernel("gemm", 290, 60, 2),
    op("profiler's end", 5000, 10),
]  # fmt: skip


def test_steps_by_hand(tmp_path: Path) -> None:
    found = report(tmp_path, STEPS)
    assert found.window_is_steps
    assert found.window_ns == 350 * US  # the steps, and the kernel that they launched
    assert [
        (s.number, s.duration_ns / US, s.gpu_busy_ns / US, s.data_wait_ns / US, s.num_launches, s.is_cut)  # type: ignore[operator]
        for s in found.steps
    ] == [(4, 100, 40, 30, 1, False), (5, 200, 30, 0, 1, False), (6, 5, 5, 0, 0, True)]
    assert any("step 6 was cut" in text for text in found.notes)


def test_steps_of_a_process_without_operators_are_no_steps(tmp_path: Path) -> None:
    found = report(tmp_path, [op("aten::mm", 0, 10), note("ProfilerStep#1", 0, 10**6) | {"pid": 9}])
    assert not found.steps
    assert found.window_ns == 10 * US


def loop(num_steps: int, *parts: list[dict[str, Any]], step_us: float = 1000) -> list[dict[str, Any]]:
    """The parts again and again, each time in a step, with correlations of their own."""
    events = []
    for step in range(num_steps):
        events.append(note(f"ProfilerStep#{step}", step * step_us, step_us))
        for original in [e for part in parts for e in part]:
            args = dict(original["args"])
            if args.get("correlation"):
                args["correlation"] += 1000 * step
            events.append(original | {"ts": original["ts"] + step * step_us, "args": args})
    return events


BUSY = [op("aten::mm", 0, 20), launch(5, 10, 1), kernel("gemm", 20, 970, 1)]
SMALL = [e for i in range(50) for e in (op("aten::add", 20 * i, 19), launch(20 * i + 5, 10, 1 + i),
                                       kernel("add", 20 * i + 12, 2, 1 + i))]  # fmt: skip
LOADING = [
    note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 800),
    op("aten::mm", 800, 20), launch(805, 10, 1), kernel("gemm", 820, 170, 1),
]  # fmt: skip
NCCL = [op("aten::mm", 0, 20), launch(5, 5, 1), kernel("gemm", 20, 300, 1), launch(15, 5, 2),
        kernel("ncclDevKernel_AllReduce", 200, 790, 2, stream=20)]  # fmt: skip
COPYING = [op("aten::copy_", 0, 20), copy(10, 900), op("aten::mm", 900, 20), launch(905, 5, 1), kernel("x", 915, 60, 1)]
PYTHON = [op("aten::mm", 900, 20), launch(905, 5, 1), kernel("gemm", 915, 60, 1)]
STALL = [
    op("aten::mm", 0, 20),
    launch(5, 5, 1),
    kernel("gemm", 20, 80, 1),
    launch(12, 5, 2),
    kernel("gemm", 900, 90, 2),
]
OPERATORS = [op("aten::mm", 0, 700), op("aten::add", 700, 100)]
LOADING_ON_CPU = [
    note("enumerate(DataLoader)#x.__next__", 0, 600),
    op("aten::stack", 100, 400),
    op("aten::mm", 600, 300),
]
GLOO = [op("aten::mm", 0, 200), note("gloo:all_reduce", 100, 850, 5)]

# Calls that return when the collective has, and the hook of a backward that waits for one.
GLOO_WAITS = [
    op("aten::mm", 0, 200),
    op("c10d::allreduce_", 200, 300),
    note("gloo:all_reduce", 210, 280, 5),
    op("autograd::engine::evaluate_function: MmBackward0", 500, 480),
    op("aten::mm", 500, 80),
    note("gloo:all_gather", 560, 400, 5),
]


@pytest.mark.parametrize(
    ("parts", "bound", "share"),
    [
        (BUSY, Bound.GPU, 0.97),
        (SMALL, Bound.LAUNCH, 50 * (19 - 2) / 1000),
        (LOADING, Bound.INPUT, 0.79),  # the last kernel of the step before ends with it
        (NCCL, Bound.COMMUNICATION, 0.67),
        (COPYING, Bound.COPY, 0.9),
        (PYTHON, Bound.HOST, 0.925),  # before the operator, and after the kernel
        (STALL, Bound.STALL, 0.8),
        (OPERATORS, Bound.CPU, 0.8),
        (LOADING_ON_CPU, Bound.INPUT, 0.6),
        (GLOO, Bound.COMMUNICATION, 0.75),
        (GLOO_WAITS, Bound.COMMUNICATION, 0.28 + 0.38),
    ],
    ids=lambda value: str(value) if isinstance(value, Bound) else "",
)
def test_verdicts(tmp_path: Path, parts: list[dict[str, Any]], bound: Bound, share: float) -> None:
    found = report(tmp_path, loop(5, parts)).verdict
    assert found.bound is bound
    assert found.share == pytest.approx(share, abs=0.02)
    assert f"{found.share * 100:.0f}%" in found.sentence
    assert found.advice


def test_launches_without_gpu_times_have_no_verdict(tmp_path: Path) -> None:
    counted = event("cuda_profiler_range", "gemm", 0, 900)
    found = report(tmp_path, [op("aten::mm", 0, 100), launch(10, 20, 1), counted])
    assert found.verdict.bound is Bound.UNKNOWN
    assert any("counter ranges" in text for text in found.notes)


def test_notes_say_what_makes_figures_doubtful(tmp_path: Path) -> None:
    first = [launch(0, 6000, 1), kernel("a", 6000, 5, 1), launch(7000, 5, 2), kernel("b", 7010, 5, 2)]
    (text,) = report(tmp_path, first).notes
    assert "6.00 ms of the 6.00 ms" in text and "warm-up" in text
    (text,) = report(tmp_path, [launch(0, 5, 1), kernel("a", 9, 5, 1), kernel("b", 20, 5, 77)]).notes
    assert "1 kernels (50%) have no launch" in text
    texts = report(
        tmp_path, [op("x", 0, 5), event("python_function", "f", 0, 5), event("overhead", "CUPTI", 0, 3)]
    ).notes
    assert any("Python stacks" in text for text in texts) and any("3.00 µs" in text for text in texts)


@pytest.mark.parametrize(
    ("whole", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*> >"
         "(int, at::native::FillFunctor<float>, at::detail::Array<char*>)",
         "vectorized_elementwise_kernel<4, FillFunctor<float>, Array<char*> >"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
         "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int>(float*)",
         "CatArrayBatchedCopy<float, unsigned int>"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("", ""),
    ],
)  # fmt: skip
def test_short_names(whole: str, short: str) -> None:
    assert short_name(whole) == short


times = st.tuples(st.integers(0, 60), st.integers(0, 20))
any_event = st.one_of(
    st.builds(lambda t, tid, n: op(n, *t, tid), times, st.integers(1, 3), st.sampled_from(["a", "b"])),
    st.builds(lambda t, n: note(n, *t), times, st.sampled_from(["ProfilerStep#1", "data_load", "gloo:x", "mine"])),
    st.builds(lambda t, c, tid: launch(*t, c, tid), times, st.integers(0, 6), st.integers(1, 2)),
    st.builds(lambda t, c, s, n: kernel(n, *t, c, s), times, st.integers(0, 6), st.integers(1, 2),
              st.sampled_from(["gemm", "ncclX"])),
    st.builds(lambda t: copy(*t), times),
    st.builds(lambda t: event("cuda_runtime", "cudaDeviceSynchronize", *t), times),
)  # fmt: skip
every = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


@every
@given(st.lists(any_event, min_size=1, max_size=25))
def test_every_account_adds_up(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    found = report(tmp_path, events)
    assert sum(share.time_ns for share in found.account) == found.window_ns
    assert sum(share.share for share in found.account) == pytest.approx(1)
    for gpu in found.devices:
        assert gpu.busy_ns <= min(gpu.window_ns, gpu.compute_ns + gpu.communication_ns + gpu.copy_ns)
        assert gpu.communication_hidden_ns <= min(gpu.compute_ns, gpu.communication_ns)
    assert found.cpu_busy_ns <= min(found.window_ns, sum(use.busy_ns for use in found.threads))
    json.dumps(found.summary(), allow_nan=False)


@every
@given(st.lists(any_event, min_size=1, max_size=25))
def test_self_times_add_up_to_the_outermost_calls(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    tree = call_tree(traced(tmp_path, events))
    calls = tree.events
    for i, parent in enumerate(tree.parent.tolist()):
        if parent == NONE:
            continue
        assert parent < i and calls.lane[parent] == calls.lane[i]
        assert calls.start_ns[parent] <= calls.start_ns[i] and calls.end_ns[i] <= calls.end_ns[parent]
    found = report(tmp_path, events)
    runtime = calls.of(Kind.RUNTIME)
    outermost_ns = calls.duration_ns[tree.parent == NONE].sum()
    inner_ns = calls.duration_ns[(tree.parent != NONE) & (calls.kind[tree.parent] == Kind.RUNTIME)].sum()
    own_ns = sum(o.self_ns for o in (*found.operators, *found.annotations))
    assert own_ns + runtime.duration_ns.sum() - inner_ns == outermost_ns
    assert all(0 <= o.gpu_self_ns <= o.gpu_total_ns for o in found.operators)
