import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from whet.measure.machine import power


@pytest.fixture(autouse=True)
def _without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "_gpus", list)


def _zone(root: Path, name: str, label: str, energy_uj: int, range_uj: int = 1_000_000) -> Path:
    zone = root / name
    zone.mkdir()
    (zone / "name").write_text(f"{label}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return zone


def test_packages_are_counted_once_and_counters_start_anew(tmp_path: Path) -> None:
    first = _zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = _zone(tmp_path, "intel-rapl:1", "package-1", 100_000)
    _zone(tmp_path, "intel-rapl:0:0", "core", 500_000)  # a part of the first
    meter = power.EnergyMeter(tmp_path)
    meter.start()
    (first / "energy_uj").write_text("100000\n")  # past its range, from the start again
    (second / "energy_uj").write_text("350000\n")
    energy = meter.stop()
    assert energy.joules == pytest.approx({"package-0": 0.2, "package-1": 0.25})
    assert energy.total_j == pytest.approx(0.45)


def test_the_platforms_counter_holds_the_packages_and_is_not_added_to_them(tmp_path: Path) -> None:
    zones = {"package-0": _zone(tmp_path, "intel-rapl:0", "package-0", 0)}
    zones["psys"] = _zone(tmp_path, "intel-rapl:1", "psys", 0)
    meter = power.EnergyMeter(tmp_path)
    meter.start()
    for zone, energy_uj in ((zones["package-0"], 200_000), (zones["psys"], 300_000)):
        (zone / "energy_uj").write_text(f"{energy_uj}\n")
    assert meter.stop().joules == pytest.approx({"package-0": 0.2})


def test_no_counter_is_not_zero(tmp_path: Path) -> None:
    meter = power.EnergyMeter(tmp_path)
    meter.start()
    energy = meter.stop()
    assert energy.total_j is None
    assert "no energy counter" in energy.reason


def test_a_counter_that_may_not_be_read_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 1)

    def refuse(self: object) -> int:
        raise PermissionError

    monkeypatch.setattr(power._Zone, "read_uj", refuse)
    energy = power.EnergyMeter(tmp_path).stop()
    assert energy.total_j is None
    assert "chmod a+r" in energy.reason


def test_only_the_gpu_in_use_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's other GPUs work for others; one that is not in use has no part in what a CPU does."""
    monkeypatch.undo()
    counters = {"GPU-ours": 5_000, "GPU-theirs": 900_000}
    nvml = ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})  # type: ignore[attr-defined]
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetTotalEnergyConsumption = counters.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not power.EnergyMeter(tmp_path).is_available
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    properties = {1: SimpleNamespace(uuid="ours"), 0: SimpleNamespace(uuid="theirs")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    meter = power.EnergyMeter(tmp_path)
    meter.start()
    counters["GPU-ours"] += 2_500
    assert meter.stop().joules == {"gpu-0": 2.5}
