"""Read energy counters: the processor's through Linux powercap, an NVIDIA GPU's through NVML.

The counters cover the whole package: the energy between two readings includes that of other programs. Where a machine
has no counter, or this user may not read it, there is no figure. The figure is never zero for that reason.

Source: Linux kernel documentation, "Power Capping Framework"; NVML, nvmlDeviceGetTotalEnergyConsumption.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from whet.measure.clocks import current_device, nvml_in_use

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Energy:
    """Hold the energy that was used between two readings.

    Attributes:
        joules: Joules by counter, as "package-0" or "gpu-0". Empty where no counter can be read.
        reason: Why no counter can be read; "" where one can.
    """

    joules: dict[str, float]
    reason: str = ""

    @property
    def total_j(self) -> float | None:
        """Return the joules of all counters; None without a counter."""
        return sum(self.joules.values()) if self.joules else None


@dataclass(frozen=True)
class _Zone:
    """Describe one powercap zone. Its microjoules wrap around at `range_uj`."""

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
        """Return whether any counter can be read."""
        return bool(self._zones or self._gpus)

    def start(self) -> None:
        self._started = self._read()

    def stop(self) -> Energy:
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
        return counters | {f"gpu-{i}": read_mj() / 1e3 for i, read_mj in enumerate(self._gpus)}


def _zones(powercap: Path) -> tuple[list[_Zone], str]:
    """Return the packages' zones, and why there are none if there are none.

    A package's zone includes its parts, as core and uncore. The platform's zone (psys) includes the packages, so it is
    used only where no package has a zone.
    """
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


def _gpus() -> list[Callable[[], int]]:
    """Return what reads the millijoules of the GPU that this process computes on, if it counts them (from Volta on).

    Other GPUs of the machine work for others, and one that is not in use has no part in what a CPU does.
    """
    nvml = nvml_in_use()
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
        read_mj = partial(nvml.nvmlDeviceGetTotalEnergyConsumption, current_device(nvml))
        read_mj()
    except nvml.NVMLError:
        return []
    return [read_mj]
