from pathlib import Path

import pytest

from whet.machine import power


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
