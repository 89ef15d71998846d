"""Compare the best trials with the original, each in processes of its own; the verdict rests on that.

Processes are the independent replicates: one of each side is one observation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.comparison.compare import Comparison, TimeLimit, compare_all
from whet.comparison.run import Run
from whet.comparison.stopping import Fixed
from whet.tuner.budget_plan import MIN_ROUNDS, ROUNDS
from whet.tuner.kind import Kind
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant

ORIGINAL = "original"  # the name of its side
_ROUNDS_ALONE = 3  # of the original, where there is nothing to compare it with
_MIN_PAIRS = 2  # a single pair has no interval


@dataclass(frozen=True)
class NamedSide:
    """Describe a side of a comparison by its name and a function that measures it in a process of its own."""

    name: str
    run: Callable[[], Run]


def side_name(record: TrialRecord | None, word: str = "trial") -> str:
    """Return the name of a trial's side, or of the original's (None)."""
    return ORIGINAL if record is None else f"{word}-{record.number}"


@dataclass(frozen=True)
class Finals:
    """Hold what the finals showed.

    Attributes:
        points: The finalists with two pairs or more, in the order of the trials.
        failures: How sides failed, in words.
        num_finalists: How many finalists were to be measured.
        lost: The numbers of the trials that failed.
        is_disturbed: Whether other processes disturbed a run that is in no pair for that.
    """

    baseline: MeasuredVariant
    points: list[MeasuredVariant]
    failures: tuple[str, ...] = ()
    num_finalists: int = 0
    lost: frozenset[int] = frozenset()
    is_disturbed: bool = False


def compare_finalists(kind: Kind, finalists: Sequence[TrialRecord], records: Sequence[TrialRecord]) -> Finals:
    """Measure the finalists and the original in pairs, within what the budget leaves beside the proofs.

    Without finalists the original is measured alone. A round begins after the budget's end only as long as there are
    fewer than six pairs, and none that would end after the time by which a budget may be exceeded.
    """
    work, now = kind.work, kind.work.budget.clock()
    proofs_s = kind.proofs_s(finalists)
    limit = TimeLimit(
        now + work.budget.left_s - proofs_s, now + work.budget.left_at_most_s - proofs_s, work.budget.clock
    )
    original = kind.side(None)
    found = Comparison([], {})
    if finalists or kind.times_original_alone:
        # Who saves memory or bytes may be slower, and needs all of its pairs.
        lost_after = Fixed.lost_after if kind.goal.asks_for_speed else 0
        stop = (
            Fixed(ROUNDS, MIN_ROUNDS, lost_after=lost_after, noise_from=kind.noise_from)
            if finalists
            else Fixed(_ROUNDS_ALONE, 1)
        )
        found = compare_all(
            [(original, kind.side(record)) for record in finalists],
            schedule=kind.schedule,
            stop=stop,
            alone=() if finalists else [original],
            patience=work.patience,
            limit=limit,
            old_may_fail=True,
            report=lambda done, _: work.listener.measured(min(done, stop.most), stop.most),
        )
    return _found(kind, finalists, records, found)


def _found(kind: Kind, finalists: Sequence[TrialRecord], records: Sequence[TrialRecord], found: Comparison) -> Finals:
    own = found.runs.get(ORIGINAL, ())
    ended = [run for run in own if not run.failure]
    baseline = kind.baseline([run for run in ended if run.counts] or ended, records)
    claims = list(zip(finalists, found.claims, strict=False))
    points = [
        kind.point(record, claim, baseline)
        for record, claim in claims
        if not claim.failure and claim.num_pairs >= _MIN_PAIRS
    ]
    failed = [(record, claim.failure) for record, claim in claims if claim.failure]
    failures = [*kind.lost.values(), *(f"{record.label}: {why}" for record, why in failed)]
    failures += [f"the original: {run.failure}" for run in own[:1] if not ended]
    return Finals(
        baseline,
        points,
        tuple(failures),
        len(finalists),
        frozenset({*kind.lost, *(record.number for record, _ in failed)}),
        any(run.busy for runs in found.runs.values() for run in runs),
    )
