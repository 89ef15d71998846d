"""Measure sides by a schedule until a stopping rule says that there are enough pairs, and judge the pairs."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from whet.comparison.claim import Claim, Verdict
from whet.comparison.run import Run, Side, on_common_calls
from whet.comparison.schedules import Pair, Schedule
from whet.comparison.stopping import Stop
from whet.measure.evidence import agreement_between
from whet.measure.load import total
from whet.measure.quiet import QuietWait


@dataclass(frozen=True)
class TimeLimit:
    """Limit the time of a comparison, whatever its stopping rule says.

    Attributes:
        soft: No round is begun after this time, once there are as many pairs as the rule needs at least.
        hard: No round is begun that would not end by this time, judged by the longest round so far. A round that
            this time cuts off does not count.
    """

    soft: float = math.inf
    hard: float = math.inf
    clock: Callable[[], float] = time.monotonic


NO_LIMIT = TimeLimit()

_UNPAIRED = "hardly any of its steps were measured quietly on both sides; give the comparison more time"


@dataclass
class Progress:
    """Track one claim while it is measured.

    Attributes:
        pairs: The rounds in which both sides gave times, disturbed ones included.
        seconds: Wall time of its pairs.
        is_over: Whether no further pair is needed or possible.
        is_disturbed: Whether a run stayed disturbed on a busy machine.
        is_unpaired: Whether two runs had too few steps in common to be a pair.
    """

    pair: Pair
    pairs: list[tuple[Run, Run]] = field(default_factory=list)
    failure: str = ""
    failed: str = ""
    seconds: float = 0.0
    is_over: bool = False
    is_disturbed: bool = False
    is_unpaired: bool = False

    @property
    def counted(self) -> list[tuple[Run, Run]]:
        """Return the pairs in which neither side was disturbed."""
        return [(old, new) for old, new in self.pairs if old.counts and new.counts]

    @property
    def times(self) -> tuple[list[float], list[float]]:
        """Return the seconds per call of the two sides, by pair."""
        return [old.seconds for old, _ in self.counted], [new.seconds for _, new in self.counted]

    def add(self, runs: Mapping[str, Run], *, old_may_fail: bool) -> None:
        """Add one round's runs. A side that fails ends the claim, unless it is an old side that may fail."""
        old, new = (runs.get(side.name) for side in self.pair)
        for side, run in zip(self.pair, (old, new), strict=True):
            if run is not None and run.failure and not (side is self.pair[0] and old_may_fail):
                self.failure, self.failed, self.is_over = run.failure, side.name, True
        if old is not None and new is not None and not old.failure and not new.failure:
            pair = on_common_calls(old, new)
            if pair is not None:
                self.pairs.append(pair)
            self.is_unpaired |= pair is None


@dataclass(frozen=True)
class Comparison:
    """Hold the claims in the order of their pairs, the ended runs by side, and the seconds of the longest round."""

    claims: list[Claim]
    runs: Mapping[str, Sequence[Run]]
    longest_s: float = 0.0


def compare(
    old: Side,
    new: Side,
    *,
    schedule: Schedule,
    stop: Stop,
    patience: QuietWait | None = None,
    limit: TimeLimit = NO_LIMIT,
) -> Claim:
    return compare_all([(old, new)], schedule=schedule, stop=stop, patience=patience, limit=limit).claims[0]


def compare_all(
    pairs: Sequence[Pair],
    *,
    schedule: Schedule,
    stop: Stop,
    alone: Sequence[Side] = (),
    patience: QuietWait | None = None,
    limit: TimeLimit = NO_LIMIT,
    old_may_fail: bool = False,
    report: Callable[[int, Sequence[Progress]], None] = lambda num_rounds, measured: None,
) -> Comparison:
    """Compare pairs of sides, round by round, each until its verdict is clear.

    A run that other processes disturbed is measured again as long as `patience` lasts. After that it is not paired,
    and the comparison ends. A side that fails ends its claims.

    Args:
        pairs: The old and the new side of each claim. Several pairs may share their old side.
        alone: Sides to measure beside those of the pairs.
        old_may_fail: Whether a failure of an old side only costs that round, and does not end the claim.
        report: Called after each measurement with the number of complete rounds and the claims that were measured.
    """
    patience = patience or QuietWait()
    progress = [Progress(pair) for pair in pairs]
    originals = {pair[0].name for pair in pairs} | {side.name for side in alone}
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    longest_s, num_disturbed, number = 0.0, 0, 0
    while number < stop.most + min(stop.spare, num_disturbed):
        running = [one for one in progress if not one.is_over]
        began = limit.clock()
        num_pairs = min((len(one.counted) for one in running), default=_num_alone(alone, runs))
        is_late = num_pairs >= stop.least and began > limit.soft
        is_done = bool(pairs) and not running
        if is_late or is_done or began + longest_s > limit.hard or _is_hopeless(patience, runs, originals):
            break
        is_quiet, since = True, began
        for found in schedule.round(number, [one.pair for one in running], alone, patience):
            if limit.clock() >= limit.hard and any(run.failure for run in found.values()):
                return _concluded(progress, runs, stop, patience, longest_s)
            measured, was_quiet = _taken_in(found, running, runs, patience, old_may_fail=old_may_fail)
            is_quiet &= was_quiet
            for one in measured:
                one.seconds += limit.clock() - since
                one.is_over |= stop.is_over(*one.times, len(pairs))
            since = limit.clock()
            report(number, measured)
        number += 1
        num_disturbed += not is_quiet
        if not is_quiet and not stop.spare and patience.left_s <= 0:
            break  # no round may take the place of a disturbed one
        longest_s = max(longest_s, limit.clock() - began)
        report(number, running)
    return _concluded(progress, runs, stop, patience, longest_s)


def _taken_in(
    found: Mapping[str, Run],
    running: Sequence[Progress],
    runs: Mapping[str, list[Run]],
    patience: QuietWait,
    *,
    old_may_fail: bool,
) -> tuple[list[Progress], bool]:
    """Add runs to all runs of their sides, and to the claims that they belong to.

    Return these claims, and whether all runs were quiet or count despite the load.
    """
    measured = [one for one in running if any(side.name in found for side in one.pair)]
    counted = dict(found)
    if patience.goes_on:  # the user lets disturbed runs count
        counted = {name: run.model_copy(update={"busy": ""}) for name, run in found.items()}
    for one in measured:
        one.is_disturbed |= any(found[side.name].busy for side in one.pair if side.name in found)
        one.add(counted, old_may_fail=old_may_fail)
    for name, run in counted.items():
        runs[name].append(run)
    return measured, not any(run.busy for run in counted.values())


def _num_alone(alone: Sequence[Side], runs: Mapping[str, Sequence[Run]]) -> int:
    """Return how many runs count of the side that has the fewest."""
    return min((sum(run.counts for run in runs.get(side.name, ())) for side in alone), default=0)


def _is_hopeless(patience: QuietWait, runs: Mapping[str, Sequence[Run]], originals: Iterable[str]) -> bool:
    """Return whether the machine stays busy, and there is at least one run of an original to speak of."""
    return patience.has_run_out and any(not run.failure for name in originals for run in runs.get(name, ()))


def _concluded(
    progress: Sequence[Progress],
    runs: Mapping[str, Sequence[Run]],
    stop: Stop,
    patience: QuietWait,
    longest_s: float,
) -> Comparison:
    """Judge every claim, then all of them together."""
    claims = [_judged(one, runs, stop, patience, len(progress)) for one in progress]
    return Comparison(stop.conclude(claims), runs, longest_s)


def _judged(
    one: Progress, runs: Mapping[str, Sequence[Run]], stop: Stop, patience: QuietWait, num_claims: int
) -> Claim:
    """Judge one claim, and add what is known beside its times."""
    old_s, new_s = one.times
    original_s = [run.seconds for run in runs.get(one.pair[0].name, ()) if run.counts]
    claim = stop.judge(old_s, new_s, num_claims, original_s)
    failure, failed = one.failure, one.failed
    if one.is_unpaired and not one.pairs and not failure:
        failure, failed = _UNPAIRED, one.pair[1].name
    if failure:
        claim = replace(claim, verdict=Verdict.INCONCLUSIVE, failure=failure, failed=failed)
    is_disturbed = one.is_disturbed or (patience.has_run_out and not one.is_over)
    is_open = claim.verdict is Verdict.INCONCLUSIVE and not failure
    old_evidence, new_evidence = (
        next((run.evidence for run in runs.get(side.name, ()) if run.evidence is not None), None) for side in one.pair
    )
    agreement = None
    if old_evidence is not None and new_evidence is not None:
        agreement = agreement_between(old_evidence, new_evidence)
    return replace(
        claim,
        agreement=agreement,
        load=total(run.load for pair in one.pairs for run in pair),
        busy=patience.sentence if is_disturbed and (is_open or patience.goes_on) else "",
        is_clear=claim.is_clear or one.is_over,
        seconds=one.seconds,
        pairs=tuple(one.counted),
    )
