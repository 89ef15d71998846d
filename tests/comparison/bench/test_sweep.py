from pathlib import Path

import pytest

from whet.cli import main
from whet.comparison.bench import against
from whet.comparison.bench.plot import plot_sweep
from whet.comparison.bench.report import Point, Sweep, read_sweep
from whet.comparison.bench.sweep import _growth, bench, combined, grid
from whet.errors import BaselineError, OptionError, TargetError
from whet.measure.isolate import Outcome
from whet.measure.load import Load
from whet.measure.quiet import QuietWait

TARGETS = """
import time

import torch
from torch import nn


class Squares(nn.Module):
    def forward(self, x):
        if x.shape[0] == 64:
            raise RuntimeError("64 is too many")
        return (x @ x.transpose(-1, -2)).sum(-1)


def squares(batch: int = 2, seq: int = 16):
    torch.manual_seed(0)
    return Squares(), torch.randn(batch, seq, 8)


class LosesPatience(nn.Module):
    calls = 0

    def forward(self, x):
        LosesPatience.calls += 1
        time.sleep(0.01)
        if LosesPatience.calls > 200:
            raise ValueError("enough")
        return x + 1


def impatient():
    return LosesPatience(), torch.ones(4)
"""


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "squares_to_bench.py"
    path.write_text(TARGETS)
    return path


def test_every_pair_of_sizes_once() -> None:
    assert grid([1, 8], [128]) == [{"batch": 1, "seq": 128}, {"batch": 8, "seq": 128}]
    assert grid([], []) == [{}]
    with pytest.raises(OptionError, match="--seq"):
        grid([1], [0])


@pytest.mark.usefixtures("forked")
def test_a_sweep_goes_on_past_a_point_that_fails(targets: Path, tmp_path: Path) -> None:
    sweep = bench([f"{targets}:squares"], batch=[1, 64, 256], budget_s=0.1, with_memory=True, with_energy=True)
    assert [p.status for p in sweep.points] == ["done", "failed", "done"]
    assert "64 is too many" in sweep.points[1].reason
    first, last = sweep.points[0], sweep.points[2]
    assert (first.num_samples, last.num_samples) == (1, 256)
    assert first.latency_ms is not None
    assert last.latency_ms is not None
    assert first.latency_ms < last.latency_ms
    assert last.throughput_per_s == pytest.approx(256e3 / last.latency_ms, rel=1e-6)
    assert first.peak_bytes is not None
    assert first.live_tensor_bytes == 16 * 8 * 4 + 16 * 4  # the input, and the output it was checked with
    assert (first.energy_j is None) == bool(first.energy_reason)
    assert (last.share_of_limit or 0) > 0
    path = tmp_path / "sweep.json"
    sweep.write(path)
    assert read_sweep(path).model_dump_json() == sweep.model_dump_json()
    plot_sweep(sweep, tmp_path / "sweep.svg")
    assert "samples per batch" in (tmp_path / "sweep.svg").read_text() or (tmp_path / "sweep.svg").stat().st_size > 5000


@pytest.mark.usefixtures("forked")
def test_what_was_timed_before_a_call_raised_is_kept(targets: Path) -> None:
    (point,) = bench([f"{targets}:impatient"], budget_s=30.0).points
    assert point.status == "partial"
    assert "enough" in point.reason
    assert point.latency_ms is not None
    assert 100 < point.num_calls < 200


def test_a_point_that_outgrows_its_memory_says_so(targets: Path) -> None:
    (point,) = bench([f"{targets}:squares"], batch=[300_000], budget_s=0.1, memory_limit_bytes=700 * 2**20).points
    assert point.status == "failed"
    assert "memory" in point.reason


def test_a_size_that_no_memory_could_hold_says_so(targets: Path) -> None:
    first, second = bench([f"{targets}:squares"], batch=[1], seq=[400_000, 16], budget_s=0.1).points
    assert first.reason.startswith("does not fit into memory: ")
    assert second.status == "done"


def test_a_wrong_name_is_refused_before_the_wait_for_quiet() -> None:
    waited: list[str] = []
    patience = QuietWait("wait", 100.0, report=waited.append, glance=lambda seconds: (Load(seconds, 2, 9.0), "others"))
    with pytest.raises(TargetError, match="no target is named"):
        bench(["digits-cnn", "no-such-workload"], patience=patience)
    assert not waited


def test_growth_is_not_fitted_to_disturbed_points() -> None:
    points = [Point(target="t", sizes={"batch": 2**i}, latency_ms=float(2**i)) for i in range(3)]
    (growth,) = _growth(points)
    assert growth.exponent == pytest.approx(1.0)
    assert _growth([point.model_copy(update={"busy": "the machine was busy"}) for point in points]) == []


def _sweep(latencies: list[float], **changes: object) -> Sweep:
    machine = {
        "chip": "a chip", "isa": ["avx2"], "cores": 2, "memory_bytes": 2**34, "gpu": "", "gpu_driver": "",
        "system": "Linux x86_64", "python": "3.11", "torch": "2.13.0", "torch_threads": 2,
    }  # fmt: skip
    point = Point(target="t", latency_ms=latencies[0], process_latencies_ms=latencies)
    return Sweep.model_validate(
        {"fingerprint": "a" * 12, "machine": machine, "points": [point.model_dump()], **changes}
    )


def test_against_a_baseline() -> None:
    before = _sweep([10.0, 10.1, 9.9, 10.05, 9.95])
    assert against.against_baseline(before, before).outcome == "pass"
    assert against.against_baseline(before, _sweep([11.0, 11.1, 10.9, 11.05, 10.95])).outcome == "fail"
    one = against.against_baseline(before, _sweep([10.0]))
    assert one.outcome == "inconclusive"
    assert "fewer than two" in one.verdicts[0].reason


def test_a_baseline_of_another_machine_is_refused() -> None:
    there = _sweep([10.0, 10.1], fingerprint="b" * 12)
    there.machine["chip"] = "another chip"
    with pytest.raises(BaselineError, match="another chip there, a chip here"):
        against.against_baseline(there, _sweep([10.0, 10.1]))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"points": 3}', '{"format": 99}', "\x00"])
def test_a_damaged_baseline_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(BaselineError, match=r"baseline\.json"):
        read_sweep(path)
    with pytest.raises(BaselineError, match="there is no baseline"):
        read_sweep(tmp_path / "none.json")


def test_calls_too_few_in_each_process_and_enough_in_all_give_a_p99() -> None:
    def outcome(times_ms: list[float]) -> Outcome:
        value = {
            "samples_ms": times_ms,
            "num_calls": len(times_ms),
            "num_samples": 1,
            "latency_ms": 1.0,
            "p99_ms": None,
        }
        return Outcome({**value, "stopped_by": ""}, None, 1.0, 0)

    fast, slow = [1.0] * 247, [1.0] * 240 + [9.0] * 13
    assert combined("t", {}, [outcome(fast), outcome(fast)]).p99_ms is None  # 494 calls
    point = combined("t", {}, [outcome(fast), outcome(slow)])  # 500, of which 2.6 % slow
    assert (point.num_calls, point.p99_ms) == (500, 9.0)


def test_points_of_a_busy_machine_say_so(
    targets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WHET_PRETENDED_LOAD", "1.5")
    sweep = bench([f"{targets}:squares"], budget_s=0.1, on_busy="inconclusive")
    assert sweep.points[0].busy.startswith("the machine was busy: other processes used 1.5 of")
    assert sweep.points[0].latency_ms is not None
    with pytest.raises(SystemExit) as left:
        main(["bench", f"{targets}:squares", "--budget", "0.1s", "--on-busy", "inconclusive"])
    assert left.value.code == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "The machine is busy: other processes used 1.5 of" in said
    assert "these figures cannot be trusted" in said
