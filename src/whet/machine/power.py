"""Energy counters: the processor's through Linux powercap, an NVIDIA GPU's through NVML.

Both count up by themselves, whatever runs: what is read between two moments is the whole package's energy, other
programs' included. Where a machine has no counter, or keeps it from this user, there is no figure; never zero.

Source: Linux kernel documentation, "Power Capping Framework"; NVML, nvmlDeviceGetTotalEnergyConsumption.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Energy:
    """joules: by counter, as "package-0" or "gpu-0". Empty where nothing can be read; `reason` says why."""

    joules: dict[str, float]
    reason: str = ""

    @property
    def total_j(self) -> float | None:
        return sum(self.joules.values()) if self.joules else None


@dataclass(frozen=True)
class _Zone:
    """One powercap zone: microjoules that start anew at `range_uj`."""

    name: str
    path: Path
    range_uj: int

    def read_uj(self) -> int:
        return int((self.path / "energy_uj").read_text(encoding="ascii"))


class EnergyMeter:
    """Counts energy from `start` to `stop`."""

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._zones, self.reason = _zones(powercap)
        self._gpus = _gpus()
        self._started: dict[str, float] = {}

    @property
    def is_available(self) -> bool:
        return bool(self._zones or self._gpus)

    def start(self) -> None:
        self._started = self._read()

    def stop(self) -> Energy:
        """What was used since `start`."""
        if not self.is_available:
            return Energy({}, self.reason)
        joules = {}
        ranges_j = {zone.name: zone.range_uj / 1e6 for zone in self._zones}
        for name, now_j in self._read().items():
            used_j = now_j - self._started[name]
            joules[name] = used_j if used_j >= 0 else used_j + ranges_j.get(name, 0.0)
        return Energy(joules)

    def _read(self) -> dict[str, float]:
        counters = {zone.name: zone.read_uj() / 1e6 for zone in self._zones}
        return counters | {f"gpu-{i}": _gpu_j(gpu) for i, gpu in enumerate(self._gpus)}


def _zones(powercap: Path) -> tuple[list[_Zone], str]:
    """The packages' zones, or why there are none. Their parts, as core and uncore, are counted in them, and they in
    psys, the platform's, where there is one: that stands alone only where no package has a zone."""
    found, denied = [], False
    for path in sorted(powercap.glob("*:*")):
        if path.name.count(":") != 1:
            continue  # a part of a zone
        try:
            zone = _Zone(
                name=(path / "name").read_text(encoding="ascii").strip(),
                path=path,
                range_uj=int((path / "max_energy_range_uj").read_text(encoding="ascii")),
            )
            zone.read_uj()
        except PermissionError:
            denied = True
        except (OSError, ValueError):
            continue
        else:
            found.append(zone)
    if denied and not found:
        return [], f"{powercap}/*/energy_uj may be read by root only: allow it, as `chmod a+r` does until the next boot"
    packages = [zone for zone in found if zone.name.startswith("package")]
    found = packages or found
    return found, "" if found else "no energy counter here (no powercap zone, no NVIDIA GPU)"


def _gpus() -> list[Any]:
    """NVML's handle of the GPU that this process computes on, if there is one and it counts energy (Volta and newer).

    Other GPUs of the machine work for others, and one that is not in use has no part in what a CPU does.
    """
    if not torch.cuda.is_initialized():
        return []
    try:
        import pynvml
    except ImportError:
        return []
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    try:
        pynvml.nvmlInit()  # type: ignore[no-untyped-call]
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # type: ignore[no-untyped-call]
    except pynvml.NVMLError:
        return []
    return [handle]


def _gpu_j(handle: Any) -> float:
    import pynvml

    millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # type: ignore[no-untyped-call]
    return float(millijoules) / 1e3
