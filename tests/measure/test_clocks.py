"""Clocks and the GPU's other users, as stand-ins for the kernel's files and for NVML show them."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whet.measure.clocks import Clocks
from whet.measure.load import PRETENDED


def write(cpus: Path, *khz: int) -> None:
    for core, value in enumerate(khz):
        (cpus / f"cpu{core}" / "cpufreq").mkdir(parents=True, exist_ok=True)
        (cpus / f"cpu{core}" / "cpufreq" / "scaling_cur_freq").write_text(f"{value}\n")


def test_a_clock_that_falls_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRETENDED)
    write(tmp_path, 3_400_000, 3_600_000)
    clocks = Clocks(tmp_path)
    assert clocks.cause() == ""
    write(tmp_path, 3_000_000, 3_000_000)  # what all cores reach for long
    assert clocks.cause() == ""
    write(tmp_path, 1_800_000, 2_400_000)
    assert clocks.cause() == "the processor's clock fell from 3.5 to 2.1 GHz"


def test_a_machine_that_shows_no_clock_is_let_pass(tmp_path: Path) -> None:
    assert Clocks(tmp_path).cause() == ""


class FakeNvml(SimpleNamespace):
    """One GPU. running: ids of processes on it; used: percent of its time by process."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, running: tuple[int, ...], used: dict[int, int], reasons: int = 0) -> None:
        super().__init__(running=running, used=used, reasons=reasons)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: str) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.running]

    def nvmlDeviceGetProcessUtilization(self, device: str, since_us: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, smUtil=share) for pid, share in self.used.items()]


STRANGER = 2**22 + 1  # above any process id of Linux


def test_another_process_on_the_gpu_is_told() -> None:
    nvml = FakeNvml(running=(os.getpid(), STRANGER), used={os.getpid(): 90, STRANGER: 40})
    assert Clocks(nvml=nvml).cause() == "another process used the GPU for 40% of its time"


def test_a_gpu_of_ones_own_is_quiet() -> None:
    nvml = FakeNvml(running=(os.getpid(), STRANGER), used={os.getpid(): 99, STRANGER: 2}, reasons=0x4)
    assert Clocks(nvml=nvml).cause() == ""


def test_in_a_container_whose_processes_nvml_names_otherwise_nobody_is_accused() -> None:
    assert Clocks(nvml=FakeNvml(running=(STRANGER,), used={STRANGER: 99})).cause() == ""


@pytest.mark.parametrize(("reasons", "word"), [(0x40, "heat"), (0x20, "heat"), (0x80, "power"), (0x08, "hardware")])
def test_a_gpu_that_slows_down_is_told(reasons: int, word: str) -> None:
    assert word in Clocks(nvml=FakeNvml(running=(), used={}, reasons=reasons)).cause()
