"""Modules that have moved are found at their old places too, for one version."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import whet
from whet.moved import PLACES, RENAMED, new_place


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("whet.traces.report", "whet.profiling.trace.report", "analyse_file"),
        ("whet.server.batcher", "whet.server.batching.batcher", "DynamicBatcher"),
        ("whet.workload.training", "whet.core.workload.training", "TrainingWorkload"),
        ("whet.training.pruning.gradual", "whet.trainer.gradual_pruning", "GradualPruning"),
        ("whet.training.packing", "whet.techniques.mechanisms.packing.packing", "packed_rows"),
        ("whet.scripts.command", "whet.scripts.injection.command", "run_script"),
    ],
)
def test_the_old_place_warns_and_gives_the_same(old: str, new: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} has moved to {new}.{name}"):
        found = getattr(import_module(old), name)
    assert found is getattr(import_module(new), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        import_module(old).nothing  # noqa: B018


@pytest.mark.parametrize("old", sorted(PLACES))
def test_what_has_moved_is_there_and_nothing_is_left_behind(old: str) -> None:
    new = new_place(old)
    assert new is not None and find_spec(new) is not None
    if not new.startswith(f"{old}."):
        assert find_spec(old) is not None
        import_module(old)


def test_an_import_from_an_old_place_works_in_a_fresh_process() -> None:
    code = "from whet.training.pruning.schedule import CubicSchedule; import whet.samplers as s; print(s.__name__)"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert "<string>:1: DeprecationWarning: whet.training.pruning.schedule.CubicSchedule has moved" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "whet.training.nothing",
        "whet.training.packing.nothing",
        "whet.nothing",
        "whet.scripts.nothing",
        "whet.scripts.monitor.nothing",
        "whet.scripts.injection.nothing",
    ],
)
def test_what_never_was_there_is_not_found(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.partition(".nothing")[0]):
        import_module(name)


def test_a_name_that_has_changed_warns_and_gives_the_same() -> None:
    with pytest.warns(DeprecationWarning, match="whet.Structure is now called whet.OutputConstraint"):
        found = whet.Structure
    assert found is whet.OutputConstraint


@pytest.mark.parametrize(("old", "name"), [(old, name) for old, names in RENAMED.items() for name in names])
def test_what_is_called_otherwise_is_found_by_its_old_name(old: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} has moved to {new_place(old)}.{RENAMED[old][name]}"):
        assert getattr(import_module(old), name) is getattr(import_module(str(new_place(old))), RENAMED[old][name])
