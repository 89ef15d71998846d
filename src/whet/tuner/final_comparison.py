"""Compare the best few trials with the original, each in its own processes, interleaved in random order.

One round is one process of each. The verdict comes from the rounds, since processes are the independent replicates.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whet.comparison.claim import Claim, Verdict
from whet.comparison.compare import Comparison, TimeLimit, compare_all
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds
from whet.comparison.stopping import Fixed
from whet.errors import ModelError
from whet.measure.isolate import Outcome
from whet.measure.load import total
from whet.measure.quiet import Patience
from whet.measure.stats import noise_floor
from whet.tuner.budget import BudgetEnded
from whet.tuner.doubt import doubt_about
from whet.tuner.outlook import MIN_ROUNDS, ROUNDS, RUN_S
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.trial_context import TrialContext

_LOG = logging.getLogger("whet")

_ROUNDS_ALONE = 3  # rounds of the original, where there is nothing to compare it with
_MIN_PAIRS = 2  # a single pair has no interval
_LIMIT_S = 180.0
_ORIGINAL = "original"


@dataclass(frozen=True)
class _Side:
    """Describe one variant as a side of the comparison: the original (no record), or what a trial saved.

    Attributes:
        context: Where the search works.
        record: The trial; None for the original.
    """

    context: TrialContext
    record: TrialRecord | None

    @property
    def name(self) -> str:
        """Return the name of the variant's directory."""
        return _ORIGINAL if self.record is None else f"trial-{self.record.number}"

    def run(self) -> Run:
        """Measure the variant once, in a fresh process."""
        return _measure(self.context, self.record)


def compare_finalists(
    context: TrialContext,
    finalists: Sequence[TrialRecord],
    *,
    deadline: float,
    stop_at: float = math.inf,
    unmeasured: MeasuredVariant | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    patience: Patience | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[MeasuredVariant, list[MeasuredVariant]]:
    """Measure the original and each finalist in interleaved rounds.

    A finalist whose process fails is left out of the rest and has no point. A round in which the original's process
    fails is no pair. A finalist that loses each of its first three pairs is judged by those; the finals end when no
    finalist is left. A process that was disturbed on a busy machine is measured again as long as `patience` lasts.
    After that the finals end, and disturbed processes are in no pair.

    Args:
        context: Where the search works.
        finalists: The trials to measure. Without any, the original is measured in three rounds.
        deadline: No round begins after this time, as `clock` tells, once there are six pairs; of the original alone,
            once there is one round.
        stop_at: No round begins that would end after this time, and a round in which the time runs out does not count.
        unmeasured: The original's point where there is no time for a single round.
        rounds: The largest number of rounds, without those that replace disturbed ones.
        seed: The seed for the order in each round.
        patience: How long to wait for a quiet machine.
        report: Is told how many rounds of how many have ended.
        clock: Returns the time, in seconds.

    Returns:
        The original's point and the finalists', each judged against the original.

    Raises:
        ModelError: The original fails each time.
    """
    patience = patience or Patience()
    original = _Side(context, None)
    stop = Fixed(rounds, MIN_ROUNDS) if finalists else Fixed(_ROUNDS_ALONE, 1)
    pairs = [(original, _Side(context, finalist)) for finalist in finalists]
    found = compare_all(
        pairs,
        schedule=Rounds(seed),
        stop=stop,
        alone=[original],
        patience=patience,
        limit=TimeLimit(deadline, stop_at, clock),
        old_may_fail=True,
        report=lambda done, _: report(min(done, stop.most), stop.most),
    )
    runs = found.runs.get(original.name, ())
    is_out_of_time = not runs or clock() + found.longest_s >= stop_at
    if unmeasured is not None and is_out_of_time and all(run.failure for run in runs):
        return unmeasured, []
    return _judged(context, finalists, found, patience)


def _judged(
    context: TrialContext, finalists: Sequence[TrialRecord], found: Comparison, patience: Patience
) -> tuple[MeasuredVariant, list[MeasuredVariant]]:
    """Return the original's point, and that of each finalist with its verdict."""
    ended = [run for run in found.runs.get(_ORIGINAL, ()) if not run.failure]
    original = [run for run in ended if run.counts] or ended
    if not original:
        raise ModelError("the original failed each time it was measured; the log above says how")
    baseline = _point(context, None, original)
    baseline.noise = noise_floor([[run.seconds for run in original]])
    judged = zip(finalists, found.claims, strict=True)
    points = [_finalist_point(context, c, claim, patience) for c, claim in judged if _is_judged(claim)]
    return baseline, points


def _is_judged(claim: Claim) -> bool:
    """Return whether a finalist did not fail and has enough pairs for an interval."""
    return not claim.failure and claim.num_pairs >= _MIN_PAIRS


def _finalist_point(context: TrialContext, finalist: TrialRecord, claim: Claim, patience: Patience) -> MeasuredVariant:
    """Return a finalist's point with its verdict, and the doubt about it where there is one."""
    assert claim.ratio is not None and claim.ci95 is not None
    point = _point(context, finalist, [new for _, new in claim.pairs])
    point.speedup, point.speedup_ci95 = claim.ratio, claim.ci95
    point.p_value, point.noise, point.verdict = claim.p_value, claim.noise, str(claim.verdict)
    if claim.ci95[0] > 1 and (doubt := doubt_about(context, finalist, claim, patience)):
        point.verdict, point.doubt = str(Verdict.INCONCLUSIVE), doubt
    return point


def is_gain(point: MeasuredVariant) -> bool:
    """Return whether a point is proved faster than the original."""
    return point.verdict == Verdict.PASS


def _measure(context: TrialContext, finalist: TrialRecord | None) -> Run:
    """Measure the original (None) or a finalist once, in a fresh process."""
    name = _ORIGINAL if finalist is None else f"trial-{finalist.number}"
    return _run(name, context.measure(finalist, context.directory / "finals" / name, RUN_S, _LIMIT_S))


def peak_bytes_of(context: TrialContext, saved: Path, libraries: Sequence[str] = ()) -> int | None:
    """Return the peak memory of serving the original from an artefact: the most of three processes; None on failure."""
    folder = context.directory / "finals" / "saved-original"
    outcomes = [context.measure_artefact(saved, libraries, folder, RUN_S, _LIMIT_S) for _ in range(3)]
    runs = [_run("the saved original", outcome) for outcome in outcomes]
    return None if any(run.failure for run in runs) else max(run.peak_bytes for run in runs)


def _run(name: str, outcome: Outcome) -> Run:
    """Return a process's measurement. A failure is logged, unless the budget ended the process."""
    run = outcome.answer(Run)
    if run is not None:
        return run
    message = outcome.failure.message if outcome.failure else "no result"
    if not isinstance(outcome.failure, BudgetEnded):
        _LOG.warning("%s failed in the finals: %s", name, message)
    return Run(failure=message)


def _point(context: TrialContext, finalist: TrialRecord | None, runs: Sequence[Run]) -> MeasuredVariant:
    """Return the measured variant that its runs describe, without a verdict."""
    latency = statistics.median(run.latency_ms for run in runs)
    facts = context.facts
    steps = () if finalist is None else finalist.steps
    size = facts.original_bytes if finalist is None else finalist.size_bytes or 0
    return MeasuredVariant(
        steps=steps,
        label=_ORIGINAL if finalist is None else finalist.label,
        number=None if finalist is None else finalist.number,
        latency_ms=latency,
        p90_ms=statistics.median(1e3 * run.p90_s for run in runs if run.p90_s is not None),
        throughput_per_s=facts.num_samples * 1e3 / latency,
        peak_bytes=max(run.peak_bytes for run in runs),
        live_tensor_bytes=max(run.live_tensor_bytes for run in runs),
        cuda_peak_bytes=max((run.cuda_peak_bytes for run in runs if run.cuda_peak_bytes), default=None),
        size_bytes=size,
        quality=facts.score if finalist is None else finalist.quality,
        change=None if finalist is None else finalist.change,
        agreement=None if finalist is None else finalist.agreement,
        share_of_limit=context.share_of_limit(steps, latency) if all(run.counts for run in runs) else None,
        process_latencies_ms=[run.latency_ms for run in runs],
        load=asdict(total(run.load for run in runs)),
        fixed_batch=None if finalist is None else finalist.fixed_batch,
    )
