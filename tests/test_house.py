"""The house holds for what no contract sees: modules that a string names, and circles within a wing."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import import_graph
import whet
import whet_audit

ROOT = Path(__file__).parents[1]
_DATA = {"whet.moved", "whet.notebook_views"}  # tables of names: of old places, and of what shows each record


@pytest.mark.parametrize("package", [whet, whet_audit], ids=lambda package: package.__name__)
def test_no_modules_import_each_other(package: ModuleType) -> None:
    assert import_graph.circles(import_graph.imports(package)) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1, "d": 1}, "d": {}, "e": {"a": 1}}
    assert import_graph.circles(graph) == [["a", "b", "c"]]


def test_no_name_in_a_string_points_to_a_floor_above() -> None:
    """Strings such as "whet.tuner.trial:run" are no imports for import-linter; they are looked at here."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = [
        f"{module}:{line} names {target}"
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and contract["containers"] != ["whet_audit"]
        for module, line, target in _upward(contract["containers"][0], contract["layers"])
    ]
    assert found == []


def _upward(container: str, layers: list[str]) -> Iterator[tuple[str, int, str]]:
    """Which modules below a container name one on their own floor or above."""
    floor = {f"{container}.{room.strip()}": -i for i, layer in enumerate(layers) for room in layer.split("|")}
    depth = container.count(".") + 2

    def room(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    for module, targets in import_graph.imports(whet).items():
        for target, line in targets.items():
            one, other = room(module), room(target)
            if one != other and one in floor and other in floor and floor[one] <= floor[other] and module not in _DATA:
                yield module, line, target
