"""Define what a kind is: all that differs between tuning a model, a training, a script and whatever comes next.

`driver.run` goes the same way for each kind: it examines, opens the study, searches, compares the finalists with the
original, proves what the best of them owe, gives the verdict and writes the results. It asks the kind for the rest.

The next kind fits in without a change to the driver; its name joins those of `kind_options`:

- Generation. What is examined is a served model on recorded prompts. A recipe holds engine options and techniques; an
  attempt starts an engine and sends it the requests; a side of the finals is an engine under the same load, and
  `Run.seconds` are seconds a token. The proof that is owed is the tokens' agreement with the original's: within
  the attempt for exact recipes, and in `prove` for those that round.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from whet.comparison.claim import Claim
from whet.comparison.run import Run, Side
from whet.comparison.schedules import ABBA, Schedule
from whet.core.recipe import Recipe, Step
from whet.measure.quiet import QuietWait
from whet.tuner.asked import Asked
from whet.tuner.budget import Budget
from whet.tuner.facts import Facts, KnownFacts
from whet.tuner.goal import Goal, ranked
from whet.tuner.improvement import improves
from whet.tuner.kind_options import KindWord
from whet.tuner.listener import Listener
from whet.tuner.plan import next_recipe
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result, UntriedTechnique
from whet.tuner.search import SearchTime
from whet.tuner.space import Space
from whet.tuner.time_account import TimeAccount
from whet.tuner.untried import untried


@dataclass(frozen=True)
class Work:
    """Hold what a search works with."""

    budget: Budget
    account: TimeAccount
    patience: QuietWait
    listener: Listener


@dataclass(frozen=True)
class OtherKind:
    """Say that a target, once it was built, turned out to be of another kind."""

    word: KindWord


class Kind(ABC):
    """Say what differs from kind to kind, in the order in which the driver asks.

    Attributes:
        word: What it is called in results and options.
        schedule: Which side of the finals is measured when.
        noise_from: Where the finals' noise floor comes from; see `stopping.Fixed`.
        times_original_alone: Whether the original is measured without finalists too.
        samples: Whether a sampler chooses recipes once the plan has ended.
        shares_finals: Whether one process measures the finals for all that share a search.
        target: What people call the target.
        words: What is tuned as the command line names it: a target, or a script's command; "" where it cannot.
        lost: Trials that no longer ran when they should go to the finals, by number, with reasons.
    """

    word: ClassVar[KindWord]
    schedule: ClassVar[Schedule] = ABBA()
    noise_from: ClassVar[Literal["original", "pairs"]] = "pairs"
    times_original_alone: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    shares_finals: ClassVar[bool] = True

    target: str
    words: str | Sequence[str]
    facts: Facts
    work: Work

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.goal: Goal = asked.goal
        self.lost: dict[int, str] = {}

    # What is examined

    def check(self) -> None:
        """Check what a name and options show, before anything begins.

        Raises:
            WhetError: They cannot be right.
        """

    @abstractmethod
    def at_work(self, work: Work) -> AbstractContextManager[None]:
        """Keep `work`, and hold what child processes need (a server of forks, a directory) while the search lasts."""

    @abstractmethod
    def examine(self) -> Facts | OtherKind:
        """Examine the target, and keep and return its facts.

        Raises:
            WhetError: It cannot be tuned; the message says why.
        """

    def measure_original(self) -> None:
        """Measure the original as trials are, where these need it, before anything is written.

        Raises:
            ModelError: It cannot be measured.
        """

    @abstractmethod
    def title(self) -> str:
        """Return the name of the study: searches of other targets, goals or machines have other names."""

    def go_on_with(self, known: KnownFacts) -> None:
        """Take over what an earlier search of the same study knew."""
        self.facts = self.facts.gone_on_with(known)

    # Which space, and how a recipe is attempted

    @abstractmethod
    def begin_search(self, directory: Path, records: Sequence[TrialRecord]) -> SearchTime:
        """Prepare for trials in the output directory, and return how long they may take."""

    @property
    @abstractmethod
    def space(self) -> Space:
        """Return every recipe that can be made."""

    def space_to_search(self) -> Space:
        """Return the space without what cannot pay."""
        return self.space

    def next_recipe(
        self, records: Sequence[TrialRecord], *, with_reference: bool, may_compile: bool = True
    ) -> Recipe | None:
        """Return the next recipe that is worth a trial, as a function of the trials alone; None where the plan ends.

        Args:
            with_reference: Whether there is time for torch.compile alone.
            may_compile: Whether there is time for recipes that run a compiler.
        """
        return next_recipe(
            self.space_to_search(), records, self.goal, with_reference=with_reference, may_compile=may_compile
        )

    @abstractmethod
    def attempt(self, number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        """Try a recipe, judge it, and time it beside the original, in `left_s` seconds at most. Record any failure."""

    def tidy(self, records: Sequence[TrialRecord]) -> None:
        """Remove what no later step needs of the trials so far."""

    def best_trial(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the trial that the search ends in; None where none is worth a comparison."""
        return next(iter(ranked(self.goal, records)), None)

    # What a side of the final comparison is

    @abstractmethod
    def finalists(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the trials for the finals, the best first: those that fit into what is left, and that still run."""

    def proofs_s(self, finalists: Sequence[TrialRecord]) -> float:
        """Return the seconds that the finals leave to the proofs after them."""
        return 0.0

    @abstractmethod
    def side(self, record: TrialRecord | None) -> Side:
        """Return a trial's recipe, or the original (None), as a side of the comparison."""

    @abstractmethod
    def baseline(self, runs: Sequence[Run], records: Sequence[TrialRecord]) -> MeasuredVariant:
        """Return the original's point by its runs in the finals that gave times, or by what the search knows of it."""

    @abstractmethod
    def point(self, record: TrialRecord, claim: Claim, baseline: MeasuredVariant) -> MeasuredVariant:
        """Return a finalist's point: what its pairs with the original showed, two of them at least."""

    # Which proof is owed

    def is_owed(self, steps: Sequence[Step]) -> bool:
        """Return whether a recipe owes a proof that only runs after the finals can give."""
        return False

    def prove(self, point: MeasuredVariant, baseline: MeasuredVariant) -> None:
        """Make what proof a point owes, and note it there."""

    def is_proved(self, point: MeasuredVariant) -> bool:
        """Return whether a point owes nothing, or its proof holds."""
        return not self.is_owed(point.steps) or (point.losses is not None and point.losses.is_same is True)

    def is_disproved(self, point: MeasuredVariant) -> bool:
        """Return whether the proof that a point owes was made, and fails."""
        return point.losses is not None and point.losses.is_same is False

    def is_unfinished(self, point: MeasuredVariant) -> bool:
        """Return whether more time could bring the proof that a point owes."""
        return point.losses is None or point.losses.is_unfinished

    def why_open(self, point: MeasuredVariant) -> str:
        """Return why a point that is better in its times is not proved, as a clause."""
        return "no pair of runs for its loss fitted into the budget" if point.losses is None else point.losses.words

    def instead(self, records: Sequence[TrialRecord], finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return what goes to the finals in the place of finalists that are better and not proved; [] for nothing."""
        return []

    def improves(self, point: MeasuredVariant, baseline: MeasuredVariant) -> bool:
        """Return whether a point is measured better than the original in the objective, within the limits."""
        return improves(self.goal, baseline, point)

    # What is said of it

    @abstractmethod
    def gained(self, best: MeasuredVariant, baseline: MeasuredVariant, reference: MeasuredVariant | None) -> str:
        """Return what the best point gains, in a sentence. `reference` is torch.compile alone; None if not measured."""

    def stays(self, points: Sequence[MeasuredVariant], baseline: MeasuredVariant) -> str:
        """Return why the original stays, in a sentence, where this kind can say more than the verdict does; else ""."""
        return ""

    def untried(self, records: Sequence[TrialRecord]) -> list[UntriedTechnique]:
        """Return the techniques that apply here and were in no trial, with reasons."""
        return untried(self.goal, self.space, records, self.space_to_search())

    def reference(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> MeasuredVariant | None:
        """Return torch.compile alone, as measured in the finals or else in its trial; None where it never was."""
        return None

    @abstractmethod
    def needed_s(self, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> float:
        """Return about the budget in seconds that a verdict takes, more than this one."""

    def details(self, records: Sequence[TrialRecord], best: MeasuredVariant) -> dict[str, Any]:
        """Return the fields of the result that this kind alone has. Measure here what else is told of what is kept."""
        return {}

    @property
    def options(self) -> dict[str, str]:
        """Return the options of this kind alone that differ from their defaults, for the command line."""
        return {}

    def save(self, result: Result, directory: Path) -> None:
        """Save what is kept, such as a model, and note it in the result."""

    def save_told(self, result: Result, directory: Path) -> None:
        """Save what can be saved here of a result whose finals another process has measured."""
        self.save(result, directory)

    @abstractmethod
    def report(self, result: Result, directory: Path) -> None:
        """Write the report. The recipe lies in the directory already."""
