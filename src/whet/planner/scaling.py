"""Say how the best plan of a training scales with the chips, where it breaks, and why."""

from dataclasses import replace

from whet.planner.answer import STEP_NAMES, ScalePoint, Scaling
from whet.planner.cluster import Cluster
from whet.planner.layout import Work
from whet.planner.prediction import Interval, StepParts
from whet.planner.search import Candidate, Predictor, Search
from whet.planner.space import Space

FEWEST, MOST = 8, 16_384
BROKEN = 0.5
"""The share of a chip's first tokens a second below which scaling counts as broken."""


def chip_counts(cluster: Cluster) -> list[int]:
    """Return the numbers of chips that are looked at: whole nodes, doubling, and what was asked for."""
    if cluster.between is None:
        return [cluster.num_chips]
    found, number = {cluster.num_chips}, cluster.chips_per_node
    while number <= MOST:
        if number >= FEWEST:
            found.add(number)
        number *= 2
    return sorted(found)


def scaling_of(space: Space, predict: Predictor, found: Candidate | None = None) -> Scaling:
    """Search the best plan for each number of chips, with the batch as it is, and with one that grows as they do.

    Args:
        found: The best plan of the space itself, which is not searched again.
    """
    fixed, growing = list[ScalePoint](), list[ScalePoint]()
    for number in chip_counts(space.cluster):
        cluster = space.cluster.with_chips(number)
        asked = replace(space, cluster=cluster)
        best = found if found is not None and number == space.cluster.num_chips else _best(asked, predict)
        fixed.append(_point(asked, best, fixed))
        rows, rest = divmod(space.work.global_batch_size * number, space.cluster.num_chips)
        if rows and not rest:
            if rows != space.work.global_batch_size:
                work = Work(global_batch_size=rows, sequence_length=space.work.sequence_length)
                asked = replace(asked, work=work)
                best = _best(asked, predict)
            growing.append(_point(asked, best, growing))
    breaks_at, why = _break_of(fixed)
    return Scaling(fixed=tuple(fixed), growing=tuple(growing), breaks_at=breaks_at, why=why)


def _best(space: Space, predict: Predictor) -> Candidate | None:
    """Return the best plan, whether it fits or not; None where no degrees divide the batch."""
    return next(iter(Search(space, predict).ranked(1)), None)


def _point(space: Space, best: Candidate | None, before: list[ScalePoint]) -> ScalePoint:
    """Say what the best plan for a number of chips does. `before` holds those for fewer chips."""
    chips, rows = space.cluster.num_chips, space.work.global_batch_size
    if best is None:
        return ScalePoint(
            chips=chips, global_batch_size=rows, why=f"{rows} rows do not divide among {chips} GPUs by any degrees"
        )
    if not best.fits:
        return ScalePoint(chips=chips, global_batch_size=rows, why="no layout fits into the memory")
    speed = tokens_per_s(best, space.work)
    first = next((one for one in before if one.tokens_per_s is not None), None)
    efficiency = 1.0
    if first is not None and first.tokens_per_s is not None:
        efficiency = speed.value / chips * first.chips / first.tokens_per_s.value
    return ScalePoint(
        chips=chips,
        global_batch_size=rows,
        layout=best.layout,
        step_s=best.prediction.step_s,
        tokens_per_s=speed,
        efficiency=efficiency,
        mfu=best.prediction.mfu,
        shares=shares_of(best.prediction.step),
        is_outside=bool(best.prediction.outside),
    )


def tokens_per_s(one: Candidate, work: Work) -> Interval:
    step = one.prediction.step_s
    return Interval(value=work.tokens / step.value, low=work.tokens / step.high, high=work.tokens / step.low)


def shares_of(step: StepParts) -> dict[str, float]:
    """Return the shares of a step by what they go to; parts of nothing are left out."""
    total = step.total
    return {name: value / total for name, value in step.by_name.items() if value > 0}


def _break_of(points: list[ScalePoint]) -> tuple[int | None, str]:
    """Return where scaling breaks, and why."""
    there = [one for one in points if one.layout is not None]
    if not there:
        return None, "no number of GPUs has a plan that fits"
    first = there[0]
    for one in points[points.index(first) + 1 :]:
        if one.layout is None:
            return one.chips, one.why
        if one.efficiency is not None and one.efficiency < BROKEN:
            return one.chips, _slowest(first, one)
    return None, ""


def _slowest(first: ScalePoint, last: ScalePoint) -> str:
    """Return what grew most in a step, as a share of it, since the smallest number of chips."""
    grown = {name: share - first.shares.get(name, 0.0) for name, share in last.shares.items()}
    computing = ("forward", "backward")
    others = {name: value for name, value in grown.items() if name not in computing}
    name = max(others, key=lambda one: others[one], default="")
    if not name or others[name] < 0.1:
        rows = last.layout.micro_batch_size if last.layout else 1
        return f"a chip has too little to compute at a time ({rows} rows) to be used well"
    return f"{STEP_NAMES[name]} takes {last.shares[name]:.0%} of a step"
