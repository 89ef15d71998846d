"""Traces recorded here by torch.profiler, read back, against torch's own tables."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from whet.profiling.bounds import Bound
from whet.profiling.trace.report import TraceReport, analyse_file


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    with record_function("## forward ##"):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # on a thread of its own only where a GPU is; here on this one
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def recorded() -> Iterator[profile]:
    """Three recorded steps of a small training loop, after one to wait and one to warm up."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = torch.utils.data.TensorDataset(torch.randn(40, 1, 8, 8), torch.randint(0, 10, (40,)))
    cycle = schedule(wait=1, warmup=1, active=3, repeat=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(
            activities=[ProfilerActivity.CPU], schedule=cycle, record_shapes=True, acc_events=True
        ) as profiler:
            for x, y in torch.utils.data.DataLoader(dataset, batch_size=8):
                train_step(model, optimizer, x, y)
                profiler.step()
    yield profiler


def read_back(profiler: profile, path: Path) -> TraceReport:
    profiler.export_chrome_trace(str(path))
    return analyse_file(path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_operators_agree_with_torchs_own_table(recorded: profile, tmp_path: Path, name: str) -> None:
    found = read_back(recorded, tmp_path / name)
    mine = {o.name: o for o in (*found.operators, *found.annotations)}
    theirs = {e.key: e for e in recorded.key_averages() if not e.key.startswith("ProfilerStep")}
    assert set(theirs) == {n for n in mine if not n.startswith("ProfilerStep")}
    assert "aten::conv2d" in theirs and "## forward ##" in theirs
    for key, event in theirs.items():
        assert mine[key].calls == event.count
        # torch's table is in microseconds, with three decimals each event
        assert mine[key].total_ns / 1000 == pytest.approx(event.cpu_time_total, abs=0.002 * event.count)
        assert mine[key].self_ns / 1000 == pytest.approx(event.self_cpu_time_total, abs=0.01 * event.count)


def test_steps_and_data_waits(recorded: profile, tmp_path: Path) -> None:
    found = read_back(recorded, tmp_path / "trace.json")
    whole = found.whole_steps()
    assert len(whole) >= 2
    assert all(step.data_wait_ns > 0 for step in whole[:2])  # the loader's next batch is fetched within the step
    events = [e for e in recorded.events() if "DataLoader" in e.name]
    durations_us = sorted(e.time_range.elapsed_us() for e in recorded.events() if e.name.startswith("ProfilerStep"))
    waited_us = sum(e.time_range.elapsed_us() for e in events)
    assert sum(step.data_wait_ns for step in found.steps) / 1000 == pytest.approx(waited_us, rel=0.01)
    assert [step.number for step in found.steps] == [2, 3, 4]
    assert sorted(step.duration_ns / 1000 for step in found.steps) == pytest.approx(durations_us, abs=0.002)


def test_a_cpu_has_no_gpu_figures(recorded: profile, tmp_path: Path) -> None:
    found = read_back(recorded, tmp_path / "trace.json")
    assert found.devices == () and found.kernels == () and found.launches is None
    assert found.verdict.bound in (Bound.CPU, Bound.INPUT, Bound.HOST)
    assert 0 < found.cpu_busy_ns < found.window_ns
    assert len(found.threads) == 1


def test_without_steps_and_with_stacks(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
        torch.randn(200, 200) @ torch.randn(200, 200)
    found = read_back(profiler, tmp_path / "trace.json")
    assert not found.steps and not found.window_is_steps
    assert {"aten::randn", "aten::matmul", "aten::mm"} <= {o.name for o in found.operators}
    assert any("Python stacks" in note for note in found.notes)
