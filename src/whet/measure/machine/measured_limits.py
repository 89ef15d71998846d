"""Measure what this machine can do at best, on each of its devices: whet.limits."""

from whet.measure.machine.description import Machine, describe
from whet.measure.machine.limits import Limits, load_limits
from whet.ui.notebook import Shown


class LimitsByDevice(Shown, tuple[Limits, ...]):
    """Hold the limits of each device, in a tuple that a notebook shows as tables."""


def limits(*, refresh: bool = False, machine: Machine | None = None) -> LimitsByDevice:
    """Return the limits of the GPU, where there is one, and then those of the CPU.

    They are measured once, which takes about ten seconds, and then read from the cache.

    Args:
        refresh: Measure again; the best figures count.
        machine: This machine, if the caller has described it already.

    Raises:
        MachineError: The machine cannot be read or measured.
    """
    machine = machine or describe()
    devices = ("cuda", "cpu") if machine.has_cuda else ("cpu",)
    return LimitsByDevice(load_limits(machine, refresh=refresh, device=device) for device in devices)
