"""Measure two variants in a pair of processes that take turns.

Each pair starts new processes, so that differences between processes (addresses, pages, the placement of threads) vary
from pair to pair. Drifts from second to second (clock frequency, a little load) affect both sides of a pair alike: both
processes live at the same time, and short blocks of calls alternate between them while the other one waits. A heavier
load does not affect both alike, so blocks during which other processes used the cores are measured again. docs/gate.md
has the measured error rates.
"""

import math
import socket
import statistics
from dataclasses import replace

from whet.comparison.child import ALONE, Request, TurnRequest, measure_in_turns
from whet.comparison.run import Run, Side
from whet.comparison.variant import Variant, run_of
from whet.measure.group import run_together
from whet.measure.isolate import FailureKind, Outcome
from whet.measure.load import cause_of, quiet_blocks

_ENOUGH_BLOCKS = 5  # quiet ones that a pair needs to count


def take_turns(old: Side, new: Side, first: int) -> tuple[Run, Run]:
    """Measure two variants in a pair of processes. `first` says which of them begins, 0 or 1.

    The new side's time is the old side's time multiplied by the median ratio of neighbouring blocks. Only blocks that
    were quiet on both sides count, unless too few blocks were. The `failure` of a run says why its side failed.
    """
    assert isinstance(old, Variant) and isinstance(new, Variant)
    handles = [end.detach() for end in socket.socketpair()]
    jobs = []
    for number, (variant, handle) in enumerate(zip((old, new), handles, strict=True)):
        job = variant.job()
        assert isinstance(job.arguments, Request)
        request = TurnRequest(**dict(job.arguments), begins=number == first, handle=handle)
        jobs.append(replace(job, function=measure_in_turns, arguments=request, inherit=(handle,)))
    limits = [limit for limit in (old.memory_limit_bytes, new.memory_limit_bytes) if limit is not None]
    outcomes = run_together(
        jobs,
        time_limit_s=max(old.time_limit_s, new.time_limit_s),
        memory_limit_bytes=min(limits, default=None),
    )
    if any(outcome.failure for outcome in outcomes):
        causes = ["" if _is_left_alone(outcome) else run_of(outcome).failure for outcome in outcomes]
        if not any(causes):
            causes = [run_of(outcome).failure for outcome in outcomes]
        return Run(failure=causes[0]), Run(failure=causes[1])
    old_run, new_run = (variant.with_known_evidence(run_of(o)) for variant, o in zip((old, new), outcomes, strict=True))
    return held_together(old_run, new_run)


def _is_left_alone(outcome: Outcome) -> bool:
    """Return whether a side ended well, or only since the other side had ended."""
    failure = outcome.failure
    return failure is None or failure.kind is FailureKind.PEER or failure.message == ALONE


def held_together(old: Run, new: Run) -> tuple[Run, Run]:
    """Return the runs of a pair with their times, which follow from the blocks of both."""
    loads = [a + b for a, b in zip(old.loads, new.loads, strict=True)]
    quiet = quiet_blocks(loads)
    cause = old.busy or new.busy if sum(quiet) >= _ENOUGH_BLOCKS else cause_of(loads)
    kept = [(a, b) for a, b, is_quiet in zip(old.blocks_s, new.blocks_s, quiet, strict=True) if is_quiet or cause]
    old_s = statistics.geometric_mean(a for a, _ in kept)
    ratio = math.exp(statistics.median(math.log(b / a) for a, b in kept))
    times = ({"seconds": old_s, "busy": cause}, {"seconds": old_s * ratio, "busy": cause})
    return old.model_copy(update=times[0]), new.model_copy(update=times[1])
