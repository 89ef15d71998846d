"""What every published figure comes with: the command that wrote it, the machine and the versions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from whet.measure.machine import describe, versions


def circumstances(command: str, other_versions: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the first fields of a file in docs/results.

    Args:
        command: What is typed to measure the figures again.
        other_versions: Versions of tools and packages beside those that whet knows of.
    """
    machine = describe()
    return {
        "command": command,
        "machine": {"chip": machine.chip, "cores": machine.cores, "isa": list(machine.isa), "id": machine.fingerprint},
        "versions": {**versions(), **other_versions},
    }
