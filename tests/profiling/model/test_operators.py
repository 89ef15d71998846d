"""Operators as torch.profiler saw them: counts and operations against figures worked out by hand."""

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whet.profiling.model.allocations import AllocationTracker
from whet.profiling.model.operators import OperatorCost, Operators, operators_of, start_tracer, stop_tracer


def trace(run: Callable[[], object]) -> Operators:
    tracer = start_tracer(cuda=False)
    started = time.perf_counter()
    run()
    traced_s = time.perf_counter() - started
    stop_tracer(tracer)
    return operators_of(tracer, traced_s=traced_s, cuda=False)


def named(found: Operators, name: str) -> list[OperatorCost]:
    return [cost for cost in found.costs if cost.name == name]


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 16))


def test_calls_shapes_and_operations() -> None:
    net, x = model(), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(x)
    with torch.no_grad():
        found = trace(lambda: [net(x) for _ in range(3)])
    (addmm,) = named(found, "addmm")
    assert addmm.calls == 3
    assert addmm.shapes.startswith("[16] [2, 512] [512, 16]")
    (linear,) = named(found, "linear")
    assert linear.total_s >= linear.self_s
    assert linear.total_s >= addmm.total_s
    assert addmm.allocated_bytes == 3 * 2 * 16 * 4
    assert found.flops == 3 * counter.get_total_flops()


def test_slowest_first_and_shares_add_up_to_one() -> None:
    a, b = torch.randn(400, 400), torch.randn(4, 4)
    found = trace(lambda: (a @ a, b @ b, b.relu()))
    assert found.costs[0].name == "mm"
    assert found.costs[0].shapes == "[400, 400] [400, 400]"
    assert [c.self_s for c in found.costs] == sorted((c.self_s for c in found.costs), reverse=True)
    assert sum(map(found.share, found.costs)) == pytest.approx(1.0)
    assert 0 < found.inside_s <= found.traced_s
    assert found.device_s is None and found.costs[0].device_self_s is None


def test_one_operator_at_two_shapes_is_two_rows() -> None:
    a, b = torch.randn(8, 8), torch.randn(4, 4)
    found = trace(lambda: (a @ a, b @ b, b @ b))
    assert {(c.shapes, c.calls) for c in named(found, "mm")} == {("[8, 8] [8, 8]", 1), ("[4, 4] [4, 4]", 2)}


def test_ranges_that_people_name_are_no_operators() -> None:
    def run() -> None:
        with torch.profiler.record_function("my range"):
            torch.ones(4).relu()

    found = trace(run)
    assert not named(found, "my range")
    assert named(found, "relu")


def test_under_a_dispatch_mode_each_operator_counts_once() -> None:
    a = torch.randn(64, 64)

    def run() -> None:
        with AllocationTracker():
            (a @ a).relu()

    found = trace(run)
    assert [c.calls for c in named(found, "mm")] == [1]
    assert [c.calls for c in named(found, "relu")] == [1]
    assert found.flops == 2 * 64**3
    assert not named(found, "PythonDispatchMode")


def test_a_warm_up_is_not_recorded() -> None:
    a = torch.randn(16, 16)
    tracer = start_tracer(cuda=False, warm_up=lambda: a @ a)
    a.relu()
    stop_tracer(tracer)
    found = operators_of(tracer, traced_s=1.0, cuda=False)
    assert not named(found, "mm")
    assert [c.calls for c in named(found, "relu")] == [1]


def test_nothing_ran() -> None:
    found = trace(lambda: None)
    assert found.costs == ()
    assert found.flops == 0
