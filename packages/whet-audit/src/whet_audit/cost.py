"""What a finding is expected to cost, so that those which matter come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from whet_audit.finding import Confidence, Finding, Priority
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.waits import LIBRARY

# The share of findings that were right and worth doing, judged one by one on 14 repositories not used before.
_RIGHT = {Confidence.HIGH: 0.46, Confidence.MEDIUM: 0.29, Confidence.LOW: 0.03}
_SET_UP = 0.5  # of the steps: what is said of a set-up, such as a loader's, may concern one loop of several
_BESIDE = 0.1  # of a training's time goes into evaluation, and into functions that nothing here calls in a loop
_WORKERS = 0.5  # of loading is hidden behind the step
_MINOR = 0.5  # where a rule itself says that the place matters less than most


def sorted_by_cost(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with their costs, the highest first; of equal ones in the order of the source."""
    given = list(findings)
    trains = any(finding.hot is not None and finding.hot.kind in TRAINS for finding in given)
    priced = [replace(finding, cost=cost(finding, trains=trains)) for finding in given]
    return sorted(priced, key=lambda one: (-one.cost, one.path, one.cell or 0, one.span, one.code))


def cost(finding: Finding, *, trains: bool) -> float:
    """The share of the program's time that is expected to go away, from 0 to 1.

    Args:
        finding: With its estimate for one time a step, its frequency and the rule's confidence.
        trains: Whether the program trains, so that evaluation is a small part of it.
    """
    if finding.measured is not None:
        return max(0.0, 1 - 1 / finding.measured.ratio)
    times = finding.hot.times if finding.hot is not None else 1.0
    once = (finding.gain.low + finding.gain.high) / 2
    share = once * times if times < 1 else 1 - (1 - once) ** times
    minor = _MINOR if finding.priority is Priority.LOW else 1.0
    return _RIGHT[finding.confidence] * share * _part(finding, trains=trains) * minor


def _part(finding: Finding, *, trains: bool) -> float:
    """The part of the program's time that the finding's unit of work makes up."""
    if finding.hot is None:
        return _SET_UP
    if finding.hot.kind in (LIBRARY, HeatKind.INFERENCE_CALL) or (trains and finding.hot.kind in INFERS):
        return _BESIDE
    return _WORKERS if finding.hot.kind == HeatKind.DATA else 1.0
