"""Which trials of a model reach the finals, where an artefact is gone or no longer loads."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_search
from fake_kind import work
from points_and_trials import trial

from whet.core.artefact.runtime import MANIFEST
from whet.core.recipe import Recipe, Step
from whet.measure.isolate import Failure, FailureKind
from whet.tuner.asked import Asked
from whet.tuner.budget import BudgetEnded
from whet.tuner.model_kind import ModelKind
from whet.tuner.records import TrialRecord

CRASHED = Failure(FailureKind.CRASH, "ended by SIGSEGV")


class Kind(ModelKind):
    """A search with three trials, the fastest first, whose artefacts lie below a folder.

    Args:
        folder: Where they lie.
        failures: How loading one fails, by its trial's number.
        again: What making one again comes to, by its trial's number.
    """

    def __init__(
        self, folder: Path, failures: Mapping[int, Failure], again: Mapping[int, dict[str, Any]] | None = None
    ) -> None:
        super().__init__(Asked(budget_s=600.0), contextlib.nullcontext())  # type: ignore[arg-type]
        self.work, self.facts = work(budget_s=600.0), fake_search.facts()
        self.again, self.tried = again or {}, list[int]()
        self.context = SimpleNamespace(  # type: ignore[assignment]
            artefact=lambda number: folder / str(number),
            reload_failure=lambda place, libraries: failures.get(int(place.name)),
        )

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        self.tried.append(number)
        return trial(number, steps=recipe.steps, **self.again.get(number, {}))


def records(folder: Path, saved: tuple[int, ...]) -> list[TrialRecord]:
    """The trials; those in `saved` have an artefact on disk."""
    for number in saved:
        (folder / str(number)).mkdir()
        (folder / str(number) / MANIFEST).write_text("{}")
    speedups = (3.0, 2.0, 1.5)
    return [
        trial(i, steps=[Step(technique=name)], speedup=speedup, speedup_ci95=(speedup, speedup), seconds=5.0)
        for i, (name, speedup) in enumerate(zip(("openvino", "onnxruntime", "bf16"), speedups, strict=True))
    ]


def test_one_that_no_longer_loads_makes_room_and_is_named(tmp_path: Path) -> None:
    kind = Kind(tmp_path, {0: CRASHED})
    assert [one.number for one in kind.finalists(records(tmp_path, (0, 1, 2)))] == [1, 2]
    assert list(kind.lost) == [0] and "SIGSEGV" in kind.lost[0]
    assert not kind.tried


def test_one_whose_loading_the_budget_cut_off_is_not_called_broken(tmp_path: Path) -> None:
    kind = Kind(tmp_path, {0: BudgetEnded(FailureKind.TIMEOUT, "the time was up")})
    assert [one.number for one in kind.finalists(records(tmp_path, (0, 1, 2)))] == [1, 2]
    assert not kind.lost


def test_one_whose_artefact_is_gone_is_made_again(tmp_path: Path) -> None:
    kind = Kind(tmp_path, {})
    assert [one.number for one in kind.finalists(records(tmp_path, (1, 2)))] == [0, 1]
    assert kind.tried == [0] and not kind.lost


def test_one_that_cannot_be_made_again_is_named_with_its_reason(tmp_path: Path) -> None:
    kind = Kind(tmp_path, {}, again={0: {"status": "failed", "reason": "no compiler"}})
    assert [one.number for one in kind.finalists(records(tmp_path, (1, 2)))] == [1, 2]
    assert "no compiler" in kind.lost[0]


def test_where_none_loads_there_are_no_finals(tmp_path: Path) -> None:
    kind = Kind(tmp_path, dict.fromkeys(range(3), CRASHED))
    assert kind.finalists(records(tmp_path, (0, 1, 2))) == []
    assert sorted(kind.lost) == [0, 1, 2]
