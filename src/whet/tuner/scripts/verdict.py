"""Say what was found out about a script: the verdict in a word and a sentence, and the recipe that is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.comparison.claim import Verdict
from whet.measure.quiet import Patience
from whet.recipe import Step
from whet.training.loss_proof import MOST, LossProof
from whet.training.technique import Exactness
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.scripts.search import finalists
from whet.tuner.scripts.words import gain_sentence, no_gain_sentence
from whet.tuner.training.trial import exactness_of
from whet.tuner.verdict_costs import VerdictCosts, enough


@dataclass(frozen=True)
class Spent:
    """Hold what the search took, and what a verdict would have taken.

    Attributes:
        examined_s: The seconds of the examination.
        costs: What each part takes.
        needed_s: The budget that a verdict takes.
        num_untried: The trials in it that there was no time for.
    """

    examined_s: float
    costs: VerdictCosts
    needed_s: float
    num_untried: int = 0

    @property
    def words(self) -> str:
        """Return which budget would be enough, and for what."""
        number = self.num_untried
        trials = f" for {number} {'trial' if number == 1 else 'trials'} and their proof" if number else " for the proof"
        return enough(self.needed_s) + trials


def is_rounded(steps: Sequence[Step]) -> bool:
    """Return whether only pairs of runs can show that a recipe reaches the same loss."""
    return exactness_of(steps) is not Exactness.EXACT


def verdict(
    baseline: MeasuredVariant,
    points: Sequence[MeasuredVariant],
    records: Sequence[TrialRecord],
    patience: Patience,
    spent: Spent,
) -> tuple[str, str, MeasuredVariant, bool]:
    """Return the verdict in a word and a sentence, what is kept, and whether a larger budget would tell more."""
    faster = sorted((p for p in points if p.verdict == Verdict.PASS), key=lambda p: -p.speedup)
    proved = [p for p in faster if not is_rounded(p.steps) or (p.losses is not None and p.losses.is_same is True)]
    if proved:
        left_out = [p for p in faster if p.speedup > proved[0].speedup]
        why = "".join(f" {p.label} is left out: {_open(p, spent)}." for p in left_out)
        return "gain", gain_sentence(baseline, proved[0]) + why, proved[0], False
    if faster:
        open_ = [p for p in faster if p.losses is None or p.losses.is_same is None]
        word = "inconclusive" if open_ else "no-gain"
        told = f"{faster[0].label} is faster ({faster[0].speedup:.2f}x), but {_open(faster[0], spent)}"
        return (
            word,
            f"{told}. The original stays.",
            baseline,
            any(p.losses is None or is_unfinished(p.losses) for p in open_),
        )
    if patience.has_run_out:
        return "inconclusive", f"No verdict: {patience.sentence}. The original stays.", baseline, False
    if not records and spent.num_untried:
        told = f"to examine the script took {spent.examined_s:.0f} s, and a trial takes {spent.costs.trial_s:.0f} s"
        return "inconclusive", f"The budget ended before anything was tried: {told}; {spent.words}.", baseline, True
    chosen = finalists(records)
    if chosen and not points:
        shown = f"{chosen[0].label} showed {chosen[0].speedup or 1:.2f}x in the screening, which proves nothing"
        return "inconclusive", f"{shown}: the finals did not fit into the budget; {spent.words}.", baseline, True
    if any(p.verdict == Verdict.INCONCLUSIVE for p in points):
        told = "The times of the finals do not tell. The original stays"
        return "inconclusive", f"{told}; {spent.words}.", baseline, True
    if records and all(record.status == "failed" for record in records):
        return "failed", f"Every trial failed; the first: {records[0].reason}", baseline, False
    return "no-gain", no_gain_sentence(records), baseline, False


def is_unfinished(losses: LossProof) -> bool:
    """Return whether more time could tell more: not where the original itself fails, or all pairs were made."""
    return losses.is_same is None and not losses.doubt and len(losses.pairs) < MOST


def _open(point: MeasuredVariant, spent: Spent) -> str:
    """Return why a faster recipe is not kept."""
    if point.losses is None:
        return f"no pair of runs for its training loss fitted into the budget; {spent.words}"
    return f"{point.losses.words}; {spent.words}" if is_unfinished(point.losses) else point.losses.words
