"""Read clock frequencies and other users of the GPU, once before and once after a whole measurement.

Reading them takes milliseconds, so they cannot be read around every block as the kernel's counters are.

Source: NVIDIA, "NVML API Reference Guide", on process utilization and clocks event reasons.
"""

import contextlib
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from whet.measure.load import PRETENDED, roots, tree_of
from whet.ui.figures import percent

_FREQUENCIES = "cpu[0-9]*/cpufreq/scaling_cur_freq"
_CPUS = Path("/sys/devices/system/cpu")
_LEAST_CLOCK = 0.75  # of the frequency at the beginning, on average over the cores
_LEAST_GPU_SHARE = 0.05  # of the GPU's time that another process may use
_SLOWED = {  # bits of NVML's clocks event reasons
    0x08: "the GPU's clock is lowered by its hardware",
    0x20: "the GPU's clock is lowered for heat",
    0x40: "the GPU's clock is lowered for heat",
    0x80: "the GPU's clock is lowered by its power supply",
}


@dataclass(frozen=True)
class PowerState:
    """Describe how fast the processor may run now.

    Attributes:
        governor: What chooses the cores' frequency, as "performance"; several are separated by commas; "" for unknown.
        mhz: The mean frequency of the cores; None where the system does not show it.
        is_on_battery: Whether the machine runs on its battery; None where it has none.
    """

    governor: str
    mhz: float | None
    is_on_battery: bool | None


def power_state(cpus: Path = _CPUS) -> PowerState:
    governors = set()
    for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with contextlib.suppress(OSError):
            governors.add(path.read_text(encoding="ascii", errors="replace").strip())
    battery, frequency = None, None
    with contextlib.suppress(OSError, NotImplementedError, AttributeError):  # psutil has no such sensor on some systems
        battery = psutil.sensors_battery()
    with contextlib.suppress(OSError, NotImplementedError, AttributeError):
        frequency = psutil.cpu_freq()
    return PowerState(
        governor=", ".join(sorted(governors)),
        mhz=frequency.current if frequency and frequency.current else None,
        is_on_battery=None if battery is None else battery.power_plugged is False,
    )


class Clocks:
    """Watch frequencies and the GPU's other users, from now until `cause` is called.

    Args:
        cpus: Where the kernel shows the frequency of each core.
        nvml: The module pynvml. By default it is used if this process uses a GPU and nvidia-ml-py is installed.
    """

    def __init__(self, cpus: Path = _CPUS, nvml: Any = None) -> None:
        self._cpus = cpus
        self._nvml = nvml or nvml_in_use()
        self._began_us = int(time.time() * 1e6)
        self._khz = self._frequency()

    def cause(self) -> str:
        """Return what disturbed the measurement, as a clause for people; "" where nothing did."""
        khz = self._frequency()
        if self._khz and khz and khz < _LEAST_CLOCK * self._khz:
            return f"the processor's clock fell from {self._khz / 1e6:.1f} to {khz / 1e6:.1f} GHz"
        return self._gpu_cause() if self._nvml is not None else ""

    def _frequency(self) -> float:
        """Return the mean frequency of the cores in kHz; 0 where the system does not show it."""
        if PRETENDED in os.environ:
            return 0.0
        found = []
        for path in self._cpus.glob(_FREQUENCIES):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(path.read_text(encoding="ascii")))
        return statistics.fmean(found) if found else 0.0

    def _gpu_cause(self) -> str:
        """Return what NVML says of the current GPU.

        In a container NVML may show the host's process ids. Where none of those it shows is the measurement's own, who
        is who cannot be told, and other processes are not judged.
        """
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlInit()
            device = current_device(nvml)
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
            for bit, text in _SLOWED.items():
                if bits & bit:
                    return text
            own = {pid for root in roots() for pid in tree_of(root)}
            running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)}
            if not running & own:
                return ""
            samples = nvml.nvmlDeviceGetProcessUtilization(device, self._began_us)
            used = max((s.smUtil / 100 for s in samples if s.pid and s.pid not in own), default=0.0)
            if used > _LEAST_GPU_SHARE:
                return f"another process used the GPU for {percent(used, decimals=0)} of its time"
        return ""


def nvml_in_use() -> Any:
    """Return pynvml where this process uses a GPU; None elsewhere. It does not import torch by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def current_device(nvml: Any) -> Any:
    """Return NVML's handle of the device that torch uses, which CUDA may count in another order."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
        if uuid is not None:
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return nvml.nvmlDeviceGetHandleByIndex(0)
