"""A search within its budget, on a clock that only the processes move: nothing here depends on the machine's speed."""

import contextlib
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_search
import pytest
from fake_search import FakeRunner, context, techniques

from whet.core.artefact.runtime import MANIFEST
from whet.errors import OptionError
from whet.measure.isolate import Failure, FailureKind, Function, Outcome
from whet.tuner.budget import Budget, BudgetEnded, needed_for, run_within
from whet.tuner.budget_plan import BudgetPlan, Costs, going_on
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import Goal
from whet.tuner.known_target import INPUTS, OUTPUTS
from whet.tuner.listener import Listener
from whet.tuner.model_kind import examined
from whet.tuner.records import TrialRecord
from whet.tuner.result import Result
from whet.tuner.search import SearchTime
from whet.tuner.study import Study, default_storage
from whet.tuner.target_examination import Examination
from whet.tuner.tuning import tune
from whet.tuner.untried import out_of_reach

MINUTE = 60.0


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SlowRunner:
    """Processes that take the time written here, and are ended at their limit, which takes stopping_s.

    trial_s: by technique, else "any".
    """

    clock: Clock
    examination_s: float = 8.0
    trial_s: dict[str, float] = field(default_factory=lambda: {"any": 10.0})
    original_s: float = 3.0
    variant_s: float = 3.0
    save_s: float = 3.0
    reload_s: float = 2.0
    stopping_s: float = 0.0
    inner: FakeRunner = field(default_factory=FakeRunner)
    limits: list[tuple[str, float]] = field(default_factory=list)

    def __call__(self, function: Function, request: Any, directory: Path, time_limit_s: float) -> Outcome:
        seconds, value = self._answer(function, request)
        self.limits.append((function.__name__, time_limit_s))
        self.clock.now += min(seconds, time_limit_s)
        if seconds > time_limit_s:
            self.clock.now += self.stopping_s
            return Outcome(None, Failure(FailureKind.TIMEOUT, "took longer than its limit"), time_limit_s, 0)
        if function.__name__ == "examine_any":
            (request.directory / INPUTS).touch()
            (request.directory / OUTPUTS).touch()
        if function.__name__ == "save_original":
            request.directory.mkdir(parents=True)
        if function.__name__ == "run_trial":
            answered = self.inner(function, request, directory, time_limit_s)
            (request.directory / MANIFEST).write_text("{}")
            return answered
        return Outcome(value, None, seconds, 0)

    def _answer(self, function: Function, request: Any) -> tuple[float, dict[str, Any]]:
        if function.__name__ == "examine_any":
            found = facts(self.examination_s, exclude=request.exclude)
            return self.examination_s, Examination(facts=found).model_dump(mode="json")
        if function.__name__ == "run_trial":
            names = [step.technique for step in request.steps]
            return max(self.trial_s.get(name, self.trial_s["any"]) for name in names), {}
        if function.__name__ == "save_original":
            return self.save_s, {"libraries": []}
        if function.__name__ == "reload":
            return self.reload_s, {}
        assert function.__name__ == "measure_variant"
        latency_ms = 10.0 if request.directory is None else 2.0
        run = {"seconds": latency_ms / 1e3, "p90_s": latency_ms / 1e3, "num_calls": 5, "peak_bytes": 10**8}
        run |= {"live_tensor_bytes": 10**6}
        return self.original_s if request.directory is None else self.variant_s, run


def facts(examined_s: float = 8.0, call_s: float = 0.01, exclude: Sequence[str] = ()) -> TargetFacts:
    kept = [entry for entry in techniques() if entry.technique not in exclude]
    return fake_search.facts(call_s, 4, name="slow", examined_s=examined_s, applicable=kept)


class Ear(Listener):
    def __init__(self) -> None:
        self.outlooks: list[BudgetPlan] = []
        self.records: list[TrialRecord] = []

    def planned(self, outlook: BudgetPlan) -> None:
        self.outlooks.append(outlook)

    def tried(self, record: TrialRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def clocked(runner: SlowRunner) -> Iterator[None]:
    """Let `tune` use the runner's processes and its clock. The search's own bookkeeping takes no time on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.tuner.model_kind.forking", lambda memory_limit_bytes: contextlib.nullcontext(runner))
        patch.setattr("whet.tuner.driver.Budget", lambda seconds, clock: Budget(seconds, clock=runner.clock))
        patch.setattr("whet.tuner.search.time.perf_counter", runner.clock)
        patch.setattr(
            "whet.tuner.model_kind.doubt_about", lambda *_: ""
        )  # the screening here knows nothing of the finals
        patch.setattr("whet.tuner.model_kind.write_report", lambda result, path, page: None)
        yield


def tuned(runner: SlowRunner, out: Path, budget_s: float, **options: Any) -> tuple[Result, Ear, float]:
    """The result, what the listener heard, and how long the search took by the fake clock."""
    ear, began = Ear(), runner.clock.now
    with clocked(runner):
        result = tune("digits-cnn", out=out, budget_s=budget_s, listener=ear, **options)
    return result, ear, runner.clock.now - began


def allowed(budget_s: float) -> float:
    return 1.25 * budget_s + 10


def some_times(seed: int) -> dict[str, float]:
    """How long each part may take: from well within the budget to far beyond it."""
    draw = random.Random(seed)
    longest = {
        "examination_s": 25.0,
        "trial_s": 400.0,
        "compile_s": 400.0,
        "original_s": 200.0,
        "variant_s": 60.0,
        "save_s": 400.0,
    }
    return {name: math.exp(draw.uniform(math.log(6.0), math.log(most))) for name, most in longest.items()}


@pytest.mark.parametrize("budget_s", [5.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("seed", range(5))
def test_no_search_outlives_its_budget(tmp_path: Path, budget_s: float, seed: int) -> None:
    """Whatever trials, finals and saving the original take, and however wrong that makes the estimates."""
    times = some_times(seed)
    trial_s = {"any": times.pop("trial_s"), "inductor": times.pop("compile_s")}
    runner, out = SlowRunner(Clock(), trial_s=trial_s, **times), tmp_path / "out"
    try:
        result, ear, took_s = tuned(runner, out, budget_s)
    except OptionError as error:
        assert times["examination_s"] > 1.25 * budget_s
        assert "give a larger --budget" in str(error)
        took_s = runner.clock.now - 100.0
        assert not out.exists()
    else:
        assert len(ear.outlooks) == 1
        assert result.verdict in ("gain", "no-gain", "inconclusive")
        assert (result.verdict == "inconclusive") == (result.needed_s is not None)
        assert result.verdict != "gain" or len(result.best.process_latencies_ms) >= 6
        assert (out / "result.json").is_file()
    assert took_s <= allowed(budget_s) - 5


def test_sixty_seconds_give_a_proof_and_name_what_is_untried(tmp_path: Path) -> None:
    result, ear, took_s = tuned(SlowRunner(Clock()), tmp_path / "out", 60)
    assert result.verdict == "gain"
    assert 40 < took_s <= allowed(60)
    outlook = ear.outlooks[0]
    assert outlook.has_verdict
    fits = rf"What fits: {outlook.num_trials} trials? of about \d+ s( each)?; then finals"
    assert re.match(rf"Looking at the model took 8 s of the 60 s\. {fits}", outlook.sentence)
    assert out_of_reach(result.untried) >= 1


def test_an_examination_longer_than_the_budget_is_not_told_as_a_part_of_it(tmp_path: Path) -> None:
    _, ear, _ = tuned(SlowRunner(Clock(), examination_s=24.0), tmp_path / "out", 20)
    assert ear.outlooks[0].sentence.startswith(
        "Looking at the model took 24 s, more than the budget of 20 s. What fits: "
    )


def test_twenty_seconds_prove_nothing_and_say_so(tmp_path: Path) -> None:
    result, ear, took_s = tuned(SlowRunner(Clock()), tmp_path / "out", 20)
    assert took_s <= allowed(20)
    assert result.verdict == "inconclusive"
    assert "the time was up before anything was proved; in the screening, openvino(precision=int8) was 2.00x" in (
        result.sentence
    )
    assert not ear.outlooks[0].has_verdict
    assert "no finals, so nothing can be proved. A verdict takes a budget of about 70 s." in ear.outlooks[0].sentence
    assert result.needed_s == 60.0  # the trial was quicker than expected
    assert result.best.steps == ()


def test_what_the_budget_stopped_is_tried_again_when_the_search_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, ear, took_s = tuned(SlowRunner(Clock(), trial_s={"any": 90.0}), out, 20)
    assert took_s <= allowed(20)
    assert [r.status for r in ear.records] == ["stopped"]
    assert "was stopped after" in first.trials[0].reason
    assert first.verdict == "inconclusive"
    assert any("its trial was stopped" in entry.reason for entry in first.untried)
    again, heard, _ = tuned(SlowRunner(Clock()), out, 5 * MINUTE, resume=True)
    assert again.verdict == "gain"
    assert first.trials[0].label in {r.label for r in heard.records if r.status == "done"}


def test_a_slow_torch_compile_leaves_time_for_the_others(tmp_path: Path) -> None:
    runner = SlowRunner(Clock(), trial_s={"any": 10.0, "inductor": 280.0})
    result, ear, took_s = tuned(runner, tmp_path / "out", 2 * MINUTE)
    assert took_s <= allowed(2 * MINUTE)
    assert ear.records[0].status == "stopped"
    assert ear.records[0].label.startswith("inductor(")
    assert result.verdict == "gain"


def test_what_a_compiler_took_is_expected_of_no_other_trial(tmp_path: Path) -> None:
    """A mean of all trials would end this search after the first one."""
    runner = SlowRunner(Clock(), trial_s={"any": 10.0, "inductor": 45.0})
    _, ear, took_s = tuned(runner, tmp_path / "out", 2.5 * MINUTE)
    assert took_s <= allowed(2.5 * MINUTE)
    first, *others = ear.records
    assert first.status == "done" and first.label.startswith("inductor(")
    assert len(others) >= 2


def test_a_trial_that_is_stopped_leaves_the_finals_their_time(tmp_path: Path) -> None:
    """The last one takes far longer than those before. To end a process takes a moment too."""
    runner = SlowRunner(Clock(), trial_s={"any": 20.0, "bf16": 200.0}, stopping_s=1.5)
    result, ear, took_s = tuned(runner, tmp_path / "out", 3 * MINUTE)
    assert took_s <= allowed(3 * MINUTE)
    assert ear.records[-1].status == "stopped"
    assert result.verdict == "gain"


def test_the_most_promising_goes_before_torch_compile_where_hardly_anything_fits(tmp_path: Path) -> None:
    _, ear, _ = tuned(SlowRunner(Clock()), tmp_path / "out", 20)
    assert ear.records[0].label == "openvino(precision=int8)"


def test_an_examination_longer_than_the_budget_is_an_error(tmp_path: Path) -> None:
    runner = SlowRunner(Clock(), examination_s=100.0)
    with pytest.raises(OptionError, match="longer than a budget of 20 s; give a larger --budget"):
        tuned(runner, tmp_path / "out", 20)
    assert runner.clock.now - 100 <= allowed(20)


def test_an_original_that_no_process_could_measure_has_its_latency_from_the_screening(tmp_path: Path) -> None:
    result, _, took_s = tuned(SlowRunner(Clock(), original_s=100.0), tmp_path / "out", 20)
    assert took_s <= allowed(20)
    assert (result.baseline.verdict, result.baseline.latency_ms) == ("screened", 10.0)
    assert result.baseline.process_latencies_ms == []


def test_a_search_of_which_the_plan_ends_early_takes_only_what_it_needs(tmp_path: Path) -> None:
    """A budget is a limit, never a wait."""
    exclude = [entry.technique for entry in techniques() if entry.technique not in ("bf16", "fuse_qkv")]
    result, _, took_s = tuned(SlowRunner(Clock()), tmp_path / "out", 100 * MINUTE, exclude=exclude)
    assert result.verdict == "gain"
    assert took_s < 4 * MINUTE


def test_a_trial_that_is_not_expected_to_end_in_time_is_not_begun(tmp_path: Path) -> None:
    study = Study.open(default_storage(tmp_path), "test")
    clock = Clock()
    runner = SlowRunner(clock, trial_s={"any": 10.0})
    limit = SearchTime(clock() + 35, clock() + 60, clock=clock)
    with clocked(runner):
        records = fake_search.search(context(tmp_path, runner), study, Goal(), limit)  # type: ignore[arg-type]
    assert [r.status for r in records] == ["done", "done", "rejected"]


def test_a_process_that_its_own_limit_ends_was_not_ended_by_the_budget(tmp_path: Path) -> None:
    def run(function: Function, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome:
        return Outcome(None, Failure(FailureKind.TIMEOUT, f"limit {time_limit_s}"), time_limit_s, 0)

    own = run_within(run, "f", {}, tmp_path, limit_s=5, left_s=9).failure
    assert own == Failure(FailureKind.TIMEOUT, "limit 5")
    assert isinstance(run_within(run, "f", {}, tmp_path, limit_s=9, left_s=5).failure, BudgetEnded)
    assert isinstance(run_within(run, "f", {}, tmp_path, limit_s=9, left_s=-1).failure, BudgetEnded)


def test_a_slow_model_is_known_to_be_slow_before_its_first_trial() -> None:
    quick, slow = Costs.estimate(facts(), []), Costs.estimate(facts(call_s=2.0), [])
    assert quick.finals_s(1, 6) < MINUTE < slow.finals_s(1, 6)
    assert slow.trial_s > 2 * MINUTE
    seen = TrialRecord(number=0, steps=[], status="done", seconds=30.0)
    assert Costs.estimate(facts(call_s=2.0), [seen]).trial_s == 30.0


def test_costs_hold_what_a_process_took_to_start() -> None:
    """With CUDA that is 8 to 13 s, where a fork takes nothing and a fresh process on a CPU about 2 s."""
    fast, slow = (Costs.estimate(facts().model_copy(update={"start_s": start_s}), []) for start_s in (0.1, 13.0))
    assert (fast.start_s, slow.start_s) == (2.0, 13.0)
    assert slow.variant_s - fast.variant_s == pytest.approx(11.0)
    assert slow.original_s - fast.original_s == pytest.approx(11.0)
    assert slow.trial_s - fast.trial_s == pytest.approx(12.9)
    assert slow.needed_s(20.0) >= fast.needed_s(20.0) + 12 * 11.0


def test_what_the_first_process_took_to_start_is_measured() -> None:
    found = Examination(facts=facts(examined_s=18.0).model_copy(update={"limits_s": 3.0})).model_dump(mode="json")
    known = examined(Outcome(found, None, 30.0, 0), MINUTE)
    assert isinstance(known, TargetFacts) and known.start_s == 9.0


def test_sentences() -> None:
    assert going_on(1, "whet tune x") == "1 technique is untried, as the time was up. To go on: whet tune x"
    assert going_on(7, "whet tune x").startswith("7 techniques are untried")
    assert "as the machine was busy" in going_on(7, "whet tune x", was_busy=True)
    assert (needed_for(41), needed_for(118), needed_for(121)) == (50, 120, 180)


@pytest.mark.parametrize("trial_s", [10.0, 400.0])
def test_the_original_is_saved_however_long_the_trials_take(tmp_path: Path, trial_s: float) -> None:
    """Trials and finals that take all they may leave the time that is kept for saving."""
    runner = SlowRunner(Clock(), trial_s={"any": trial_s}, original_s=40.0, variant_s=40.0, save_s=8.0)
    result, _, took_s = tuned(runner, tmp_path / "out", 60)
    assert result.verdict == "inconclusive"
    assert (result.unsaved, result.has_model) == ("", True)
    assert took_s <= allowed(60)


def test_what_is_kept_for_saving_is_at_most_the_overrun() -> None:
    budget = Budget(100.0, clock=Clock())
    assert budget.left_at_most_s == 130.0
    assert budget.keeping(12.0).left_at_most_s == 118.0
    assert budget.keeping(500.0).left_at_most_s == budget.left_s == 100.0
    assert budget.left_at_most_s == 130.0


def test_too_short_a_time_for_saving_says_what_to_do(tmp_path: Path) -> None:
    runner = SlowRunner(Clock(), trial_s={"any": 400.0}, save_s=400.0)
    result, _, _ = tuned(runner, tmp_path / "out", 20)
    assert re.fullmatch(
        r"No model/ was written: saving the original took longer than the \d+ s that were left\. "
        r"Run the command below again with --resume, or give a larger --budget\.",
        result.unsaved,
    )
