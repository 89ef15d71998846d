"""The house holds for what no static contract sees: imports within functions, and modules that a string names."""

import tomllib
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
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    floor = {wing.strip(): -i for i, layer in enumerate(layers) for wing in layer.split("|")}
    upward = [
        f"{module}:{line} names {target}"
        for module, targets in import_graph.imports(whet).items()
        for target, line in targets.items()
        if module not in _DATA
        and (wing := module.split(".")[1]) != (other := target.split(".")[1])
        and floor[wing] <= floor[other]
    ]
    assert upward == []
