"""What a finding is expected to cost, so that those which matter come first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from whet_audit.finding import Confidence, Finding, Gain, Priority
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.waits import LIBRARY

# What was right and worth doing of 222 findings, judged one by one on 14 repositories that no rule had been tried on:
# by confidence, of all, and of each rule (right, judged).
_RIGHT = {Confidence.HIGH: 0.46, Confidence.MEDIUM: 0.29, Confidence.LOW: 0.03}
_RIGHT_OF_ALL = 0.33
_JUDGED = {
    "SYN101": (25, 29), "SYN102": (1, 3), "SYN103": (3, 11), "SYN104": (0, 3), "SYN105": (2, 7), "SYN106": (7, 12),
    "SYN107": (3, 7), "SYN108": (2, 4), "SYN111": (2, 7), "SYN112": (0, 3), "MOV101": (1, 21), "MOV102": (2, 9),
    "MOV103": (1, 3), "MOV104": (4, 15), "CMP101": (0, 4), "CMP102": (4, 6), "CMP103": (1, 3), "CMP104": (0, 1),
    "CMP114": (0, 4), "CMP115": (1, 8), "CMP116": (3, 3), "CMP119": (0, 1), "DAT101": (1, 1), "DAT102": (1, 8),
    "DAT105": (0, 2), "DAT106": (0, 8), "DAT107": (2, 4), "DAT108": (0, 3), "DAT110": (0, 1), "INF101": (0, 3),
    "INF103": (20, 32), "INF105": (0, 1), "INF106": (1, 1), "PRE101": (1, 6), "MEM102": (0, 2), "MEM103": (0, 2),
    "DST102": (1, 2), "DST103": (2, 2), "DST105": (0, 4), "DST106": (0, 4),
}  # fmt: skip
_PRIOR = 4  # findings that each rule is taken to have besides, as right as all
_MOST_RIGHT = 0.95
_SET_UP = 0.5  # of the steps: what is said of a set-up, such as a loader's, may concern one loop of several
_BESIDE = 0.1  # of a training's time goes into evaluation, and into functions that nothing here calls in a loop
_WORKERS = 0.5  # of loading is hidden behind the step
_MINOR = 0.5  # where a rule itself says that the place matters less than most
_WAITS = "SYN"  # the family whose estimates are for one wait; those of others are for all of a step
_BLOCKING_COPIES = ("MOV101", "MOV103")
_WAITS_ANYWAY = 0.25  # of what such a copy costs is left where the step waits all the same


def sorted_by_cost(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with their costs, the costliest cause first; of equal ones in the order of the source.

    Findings of one rule in one function are one cause, stand together, and have its cost.
    """
    given = sorted(findings, key=lambda one: (one.path, one.cell or 0, one.span, one.code))
    trains = any(one.hot is not None and one.hot.kind in TRAINS for one in given)
    waiting = {_loop(one): one.code for one in given if one.code.startswith(_WAITS) and _loop(one) is not None}
    causes: dict[object, list[Finding]] = {}
    for finding in given:
        causes.setdefault(finding.cause, []).append(_beside(finding, waiting.get(_loop(finding))))
    priced = []
    for members in causes.values():
        shares = [cost(one, trains=trains) for one in members]
        is_wait = members[0].code.startswith(_WAITS)
        whole = 1 - math.prod(1 - share for share in shares) if is_wait else max(shares)
        priced.append((whole, members))
    priced.sort(key=lambda one: -one[0])
    return [replace(finding, cost=whole) for whole, members in priced for finding in members]


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
    share = 1 - (1 - once) ** times if times > 1 and finding.code.startswith(_WAITS) else once * min(times, 1.0)
    minor = _MINOR if finding.priority is Priority.LOW else 1.0
    return _is_right(finding) * share * _part(finding, trains=trains) * minor


def _beside(finding: Finding, wait: str | None) -> Finding:
    """A copy that blocks, with what it costs in a step that waits anyway; all others as they are."""
    if wait is None or finding.code not in _BLOCKING_COPIES:
        return finding
    given = finding.gain
    assumption = f"{given.assumption}; little, since the step waits anyway ({wait})"
    return replace(finding, gain=Gain(given.low * _WAITS_ANYWAY, given.high * _WAITS_ANYWAY, assumption))


def _is_right(finding: Finding) -> float:
    """How likely it is that a finding of its rule, as sure as it is, is right and worth doing."""
    right, judged = _JUDGED.get(finding.code, (0, 0))
    of_rule = (right + _PRIOR * _RIGHT_OF_ALL) / (judged + _PRIOR)
    return min(_MOST_RIGHT, _RIGHT[finding.confidence] * of_rule / _RIGHT_OF_ALL)


def _part(finding: Finding, *, trains: bool) -> float:
    """The part of the program's time that the finding's unit of work makes up."""
    if finding.hot is None:
        return _SET_UP
    if finding.hot.kind in (LIBRARY, HeatKind.INFERENCE_CALL) or (trains and finding.hot.kind in INFERS):
        return _BESIDE
    return _WORKERS if finding.hot.kind == HeatKind.DATA else 1.0


def _loop(finding: Finding) -> tuple[str, int] | None:
    """The step loop that a finding lies in, where it is known."""
    hot = finding.hot
    return None if hot is None or not hot.loop_line else (hot.loop_path, hot.loop_line)
