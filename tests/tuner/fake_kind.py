"""A kind whose measurements are arithmetic: driver, finals and verdict are tried with it, without a model."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fake_search

from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds
from whet.core.recipe import Recipe, Step
from whet.measure.quiet import QuietWait
from whet.techniques.proof.loss_proof import LossProof
from whet.tuner.asked import Asked
from whet.tuner.budget import Budget
from whet.tuner.finals import NamedSide, side_name
from whet.tuner.goal import Goal, ranked
from whet.tuner.kind import Kind, Work
from whet.tuner.listener import Listener
from whet.tuner.points import finalist_point, is_smaller, original_point
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.search import SearchTime
from whet.tuner.space import Space
from whet.tuner.time_account import TimeAccount

Measure = Callable[[TrialRecord | None], Run]


def work(patience: QuietWait | None = None, budget_s: float = 300.0, clock: Callable[[], float] | None = None) -> Work:
    budget = Budget(budget_s, clock=clock) if clock is not None else Budget(budget_s)
    return Work(budget, TimeAccount(budget.clock), patience or QuietWait("go-on"), Listener())


class FakeKind(Kind):
    """Trials gain what `fake_search.GAIN` says; `measure` gives the runs of the finals; `owed` is what owes a proof."""

    word = "inference"
    target = words = "fake"
    schedule = Rounds()
    noise_from = "original"

    def __init__(
        self,
        goal: Goal | None = None,
        measure: Measure | None = None,
        *,
        owed: Mapping[str, LossProof | None] | None = None,
        asked: Asked | None = None,
        **known: Any,
    ) -> None:
        super().__init__(asked or Asked(goal or Goal()))
        self.facts = fake_search.facts(**known)
        self.work = work()
        self._measure = measure or self._by_gain
        self._owed = owed or {}
        self.proved: list[str] = []
        self.attempted: list[str] = []

    def _by_gain(self, record: TrialRecord | None) -> Run:
        speedup = 1.0 if record is None else record.speedup or 1.0
        peak = 1000 if record is None else record.peak_bytes or 1000
        return Run(seconds=0.01 / speedup * next(_JITTER), num_calls=9, p90_s=0.02, peak_bytes=peak)

    @contextlib.contextmanager
    def at_work(self, work: Work) -> Iterator[None]:
        self.work = work
        yield

    def examine(self) -> Any:
        return self.facts

    def title(self) -> str:
        return f"fake {self.goal.objective}"

    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        clock = self.work.budget.clock
        return SearchTime(clock() + 60, clock() + 60, clock=clock)

    @property
    def space(self) -> Space:
        return Space(self.facts.applicable)

    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        self.attempted.append(str(recipe))
        speedup = 1.0
        for step in recipe.steps:
            speedup *= fake_search.GAIN.get(step.technique, 1.0)
        return TrialRecord(
            number=number,
            steps=recipe.steps,
            status="done",
            speedup=speedup,
            speedup_ci95=(speedup * 0.99, speedup * 1.01),
            latency_ms=10 / speedup,
            baseline_latency_ms=10.0,
            size_bytes=1000,
            drop=0.0,
            quality=1.0,
            seconds=0.1,
        )

    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        return ranked(self.goal, records)[:2]

    def side(self, record: TrialRecord | None) -> NamedSide:
        return NamedSide(side_name(record), lambda: self._measure(record))

    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        return original_point(runs or [Run(seconds=0.01)], 1.0, size_bytes=1000)

    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        return finalist_point(record, claim, is_smaller=is_smaller(claim, 0.97))

    def is_owed(self, steps: Sequence[Step]) -> bool:
        return any(step.technique in self._owed for step in steps)

    def prove(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        self.proved.append(point.label)
        point.losses = next(self._owed[step.technique] for step in point.steps if step.technique in self._owed)

    def gained(self, best: MeasuredVariant, baseline: MeasuredVariant, reference: MeasuredVariant | None) -> str:
        return f"{best.label}: {best.speedup:.2f}x."

    def needed_s(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> float:
        return 480.0

    def report(self, result: Result, directory: Path) -> None:
        (directory / "report.html").write_text(result.sentence)


_JITTER = itertools.cycle([1.0, 1.004, 0.997, 1.002, 0.999])
