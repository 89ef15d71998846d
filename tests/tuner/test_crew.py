"""Searches whose trials are made elsewhere: turns of one computer, lost workers, recipes that end workers."""

import itertools
import threading
import time
from pathlib import Path

import pytest
from fake_kind import FakeKind
from fake_search import FakeRunner, applicable, context

from whet.core.recipe import Recipe, Step
from whet.errors import StudyError
from whet.measure.quiet import QuietWait
from whet.tuner.asked import Asked
from whet.tuner.crew import Attempt, Crew, WorkerLost
from whet.tuner.goal import Goal
from whet.tuner.node_request import NodeRequest
from whet.tuner.ray_workers import _request
from whet.tuner.records import TrialRecord
from whet.tuner.search import SearchTime, search_space, try_recipe
from whet.tuner.space import Space
from whet.tuner.study import Study, default_storage

FOREVER = SearchTime(1e9, 1e9, clock=lambda: 0.0)


class FakeWorker:
    """Answers by arithmetic.

    It is lost at its trial of number `dies_at`, or at any with the technique `fears`. Its first trials, as many as
    `num_meet`, last until one on another computer is made at the same time.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        computer: str,
        *,
        dies_at: int | None = None,
        fears: str = "",
        takes_s: float = 0,
        num_meet: int = 0,
        meeting: threading.Barrier | None = None,
    ) -> None:
        self.name, self.computer = name, computer
        self.dies_at, self.fears, self.takes_s = dies_at, fears, takes_s
        self.num_meet, self.meeting = num_meet, meeting
        self.tried: list[str] = []
        self.spans: list[tuple[float, float]] = []
        self.is_ended = threading.Event()
        self._context = context(directory / name, FakeRunner(), applicable=SPACE)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        began = time.monotonic()
        if self.is_ended.wait(self.takes_s):
            raise WorkerLost("it was ended")
        if len(self.tried) == self.dies_at or self.fears in {step.technique for step in recipe.steps}:
            raise WorkerLost("its process has ended")
        if self.meeting is not None and len(self.tried) < self.num_meet:
            self.meeting.wait(100)
        self.tried.append(str(recipe))
        self.spans.append((began, time.monotonic()))
        return try_recipe(self._context, Goal(), number, recipe, Space(SPACE), left_s)

    def end(self) -> None:
        self.is_ended.set()


SPACE = [
    applicable("bf16", "precision", bounds=[4.0]),
    applicable("fuse_qkv", bounds=[3.0]),
    applicable("channels_last", bounds=[2.0]),
    applicable("inductor", "backend", options={"engine": ["package", "jit"], "freezing": [True, False]}, bounds=[2.0]),
]


def searched(directory: Path, crew: Crew) -> list[TrialRecord]:
    """The records of a study that the crew has searched in."""
    directory.mkdir(exist_ok=True)
    study = Study.open(default_storage(directory), "test")
    crew.search(lambda attempt: search_space(Space(SPACE), study, Goal(), FOREVER, attempt, samples=False))
    return study.records()


def test_workers_try_each_recipe_once_and_those_of_one_computer_take_turns(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)
    workers = [
        FakeWorker(tmp_path, "a1", "a", num_meet=1, meeting=meeting),
        FakeWorker(tmp_path, "a2", "a", num_meet=1, meeting=meeting),
        FakeWorker(tmp_path, "b1", "b", num_meet=2, meeting=meeting),
    ]
    records = searched(tmp_path / "crew", Crew(workers))
    alone = searched(tmp_path / "alone", Crew([FakeWorker(tmp_path, "c", "c")]))
    labels = [record.label for record in records]
    assert len(labels) == len(set(labels))
    # What is tried beside what is not known yet may be more than one alone would try, but the plan's singles are all.
    assert {record.label for record in alone if len(record.steps) == 1} <= set(labels)
    assert all(worker.tried for worker in workers)
    assert sorted(label for worker in workers for label in worker.tried) == sorted(labels)
    assert {record.ran_on for record in records} == {"a1", "a2", "b1"}
    on_a = sorted([*workers[0].spans, *workers[1].spans])
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(on_a))


def test_a_worker_that_is_lost_loses_its_trial_only(tmp_path: Path) -> None:
    told: list[str] = []
    workers = [FakeWorker(tmp_path, "a1", "a", dies_at=1), FakeWorker(tmp_path, "a2", "a")]
    records = searched(tmp_path / "crew", Crew(workers, told.append))
    alone = searched(tmp_path / "alone", Crew([FakeWorker(tmp_path, "c", "c")]))
    assert [record.label for record in records] == [record.label for record in alone]
    assert [record.status for record in records] == [record.status for record in alone]
    assert told == ["a1 is lost (its process has ended); its trial is made again elsewhere"]
    assert [record.ran_on for record in records][:3] == ["a1", "a2", "a2"]


def test_a_recipe_that_ends_two_workers_has_failed_and_the_third_goes_on(tmp_path: Path) -> None:
    workers = [FakeWorker(tmp_path, f"a{i}", "a", fears="fuse_qkv") for i in range(3)]
    records = searched(tmp_path / "crew", Crew(workers))
    failed = [record for record in records if record.status == "failed"]
    assert failed and failed[0].label == "fuse_qkv"
    assert failed[0].reason == "2 workers were lost while they tried it: its process has ended"
    assert any(record.status == "done" for record in records)


def test_without_any_worker_left_the_search_ends_with_what_there_is(tmp_path: Path) -> None:
    crew = Crew([FakeWorker(tmp_path, "a", "a", dies_at=2), FakeWorker(tmp_path, "b", "b", dies_at=0)])
    records = searched(tmp_path / "crew", crew)
    assert [record.status for record in records].count("done") == 2
    assert crew.workers == []


def test_an_error_of_the_study_ends_all_workers(tmp_path: Path) -> None:
    slow = FakeWorker(tmp_path, "slow", "b", takes_s=600)
    crew = Crew([FakeWorker(tmp_path, "a", "a"), slow])

    def search(attempt: Attempt) -> list[TrialRecord]:
        record = attempt(0, Recipe(steps=[Step(technique="bf16")]), 600.0)
        raise StudyError(f"the storage is gone after {record.ran_on}")

    with pytest.raises(StudyError, match="gone after a"):
        crew.search(search)  # the other trial, of ten minutes, is ended
    assert slow.is_ended.is_set()


def test_a_node_is_told_what_is_asked_for_and_no_password() -> None:
    goal = Goal("memory", 0.02, 10**9, is_default_drop=True)
    limits = {"exclude": ("bf16",), "trial_limit_s": 70.0, "memory_limit_bytes": 10**10}
    asked = Asked(goal, 90.0, "/out", "postgresql://me:its-secret@host/db", resume=True, workers="ray", **limits)
    kind = FakeKind(asked=asked)
    text = _request(kind, QuietWait("go-on")).model_dump_json()
    assert "its-secret" not in text
    told = NodeRequest.model_validate_json(text)
    assert told.asked == Asked(goal, 90.0, **limits)
    assert told.facts.fingerprint == kind.facts.fingerprint and told.facts.applicable == kind.facts.applicable
