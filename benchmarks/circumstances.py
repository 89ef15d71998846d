"""What every published figure comes with: the command that wrote it, the machine and the versions."""

import json
from collections.abc import Mapping
from pathlib import Path
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


def with_others(path: Path, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return this run's models, each with its command, and the others in the file where it is of the same machine."""
    rows = [{**row, "command": report["command"]} for row in report["models"]]
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(old.get(key) != report[key] for key in report if key not in ("models", "command")):
        return rows
    others = [{"command": old["command"], **row} for row in old["models"]]
    return list({row["name"]: row for row in [*others, *rows]}.values())
