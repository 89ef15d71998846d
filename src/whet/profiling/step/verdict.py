"""Judge what bounds a training step, and give the evidence in words.

A step is cut into five parts: input (data wait, host to device), compute (forward, loss, backward, optimiser),
synchronisation, communication, and the loop's own code. Compute is the purpose of a step; the other parts could in
principle overlap with it. So the bound is the largest of the other four if it takes at least a quarter of the step,
and otherwise compute. If memory grows, this comes first, because such a loop ends by running out of memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from whet.profiling.bounds import ADVICE, BOUND_SHARE, Bound
from whet.profiling.step.growth import Growth
from whet.profiling.step.log import StepRecord
from whet.profiling.step.phases import Phase
from whet.ui.figures import digits, num_bytes, percent

LEAST_STEPS = 3  # needed after the warm-up
_BOUND_LEAST = 0.15  # the interval's lower end must reach this, so that one slow step does not decide
_WORTH_SAYING = 0.10
_RESAMPLES = 1000
_HEAPS = {"heap": "the process's heap", "cuda": "GPU memory", "resident": "the process's resident memory"}


@dataclass(frozen=True)
class Part:
    """Describe one of the five parts of a step.

    Attributes:
        share: The part's share of all steps together, 0 to 1.
        ci95: The 95% interval of the share.
        ms: Mean milliseconds per step.
        typical_share: The median over the steps of the part's share.
    """

    bound: Bound
    share: float
    ci95: tuple[float, float]
    ms: float
    typical_share: float


@dataclass(frozen=True)
class Facts:
    """Hold what the sentences may name.

    Attributes:
        loader: The loader's settings in words.
        site: Returns the line with the longest time in a phase, in words.
        on_gpu: Whether the steps were timed on a GPU.
    """

    loader: str
    site: Callable[[Phase], str]
    growth: Sequence[Growth]
    on_gpu: bool


def split_steps(records: Sequence[StepRecord]) -> tuple[Part, ...]:
    """Cut steps into five parts, by the GPU's clock if they have one. The intervals are a bootstrap over the steps."""
    ns = np.array([record.device_ns or record.ns for record in records], dtype=float)
    loss = np.array([record.loss_ns if record.device_ns is None else 0 for record in records], dtype=float)
    whole = ns.sum(axis=1)
    groups = {
        Bound.INPUT: ns[:, Phase.DATA] + ns[:, Phase.TRANSFER],
        Bound.COMPUTE: ns[:, Phase.FORWARD] + ns[:, Phase.BACKWARD] + ns[:, Phase.OPTIMIZER] + loss,
        Bound.SYNC: ns[:, Phase.SYNC],
        Bound.COMMUNICATION: ns[:, Phase.COMMUNICATION],
        Bound.LOOP: ns[:, Phase.REST] - loss,
    }
    drawn = np.random.default_rng(0).integers(0, len(records), (_RESAMPLES, len(records)))
    wholes = whole[drawn].sum(axis=1)
    parts = []
    for bound, part in groups.items():
        low, high = np.quantile(part[drawn].sum(axis=1) / wholes, [0.025, 0.975])
        share = float(part.sum() / whole.sum())
        typical = float(np.median(part / whole))
        parts.append(Part(bound, share, (float(low), float(high)), float(part.mean()) / 1e6, typical))
    return tuple(parts)


def judge(parts: Sequence[Part], facts: Facts) -> tuple[Bound, Bound, list[str]]:
    """Return the verdict, what bounds the time, and the evidence, the most important first."""
    by_bound = {part.bound: part for part in parts}
    others = [part for part in parts if part.bound is not Bound.COMPUTE]
    sure = [part for part in others if part.share >= BOUND_SHARE and part.ci95[0] >= _BOUND_LEAST]
    bound = max(sure, key=lambda part: part.share).bound if sure else Bound.COMPUTE
    growing = [trend for trend in facts.growth if trend.is_growing]
    evidence = [_grows(trend) for trend in growing]
    whole_ms = sum(part.ms for part in parts)
    evidence.append(_evidence(by_bound[bound], whole_ms, facts))
    lesser = [part for part in others if part.bound is not bound and part.share >= _WORTH_SAYING]
    evidence += [_evidence(part, whole_ms, facts) for part in sorted(lesser, key=lambda part: -part.share)]
    if not growing:
        evidence += [_steady(trend) for trend in facts.growth]
    return (Bound.MEMORY_GROWING if growing else bound), bound, evidence


def advice(verdict: Bound, facts: Facts) -> str:
    """Say in a sentence what to do first. It is more specific than ADVICE if the loop allows it."""
    if verdict is Bound.INPUT and "num_workers is 0" in facts.loader:
        return "load in workers: DataLoader(..., num_workers=2, persistent_workers=True); use more if cores are free"
    if verdict is Bound.COMPUTE:
        return "the loop itself is fine; to make the model faster, run `whet profile` on it"
    return ADVICE[verdict]


def _evidence(part: Part, whole_ms: float, facts: Facts) -> str:
    low, high = part.ci95
    took = f"{percent(part.share)} of each step (95%: {low * 100:.0f}–{percent(high, decimals=0)})"
    took += f", {digits(part.ms)} of {digits(whole_ms)} ms,"
    if part.bound is Bound.COMPUTE:
        return f"{took} is forward, loss, backward and optimiser"
    if part.typical_share < part.share / 2:
        took = f"{took} mostly in a few slow steps ({percent(part.typical_share)} of a median step),"
    faster = f"without it a step could be up to {1 / max(1e-9, 1 - part.share):.1f}x faster"
    if part.bound is Bound.INPUT:
        known = "; ".join(filter(None, (facts.loader, facts.site(Phase.TRANSFER))))
        waits = "the GPU waits for data" if facts.on_gpu else "is waiting for data"
        return f"{took} {waits}; {faster}" + (f" ({known})" if known else "")
    if part.bound is Bound.SYNC:
        where = facts.site(Phase.SYNC)
        return f"{took} is spent in calls that wait for a result{': ' + where if where else ''}; {faster}"
    if part.bound is Bound.COMMUNICATION:
        where = facts.site(Phase.COMMUNICATION)
        return f"{took} is spent in waiting for other processes{': ' + where if where else ''}; {faster}"
    return f"{took} is the loop's own code, outside all phases; {faster}"


def _grows(trend: Growth) -> str:
    low, high = trend.ci95_bytes
    steps = 1e9 / trend.slope_bytes
    return (
        f"{_HEAPS[trend.source]} grows by {num_bytes(trend.slope_bytes)} a step "
        f"(95%: {num_bytes(low)}–{num_bytes(high)}), "
        f"{num_bytes(trend.rise_bytes)} from step {trend.first_step} to {trend.last_step}: "
        f"a gigabyte every {steps:,.0f} steps"
    )


def _steady(trend: Growth) -> str:
    low, high = trend.ci95_bytes
    grows = "hardly grows" if low > 0 else "does not grow"
    return (
        f"{_HEAPS[trend.source]} {grows}: {num_bytes(trend.slope_bytes)} a step "
        f"(95%: {num_bytes(low)} to {num_bytes(high)}) "
        f"from step {trend.first_step} to {trend.last_step}"
    )
