"""What a finding is expected to cost, so that those which matter come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from whet_audit.finding import Confidence, Finding, Gain, Priority
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.waits import LIBRARY

# What was right and worth doing of 326 findings, judged one by one on 26 repositories that no rule had been tried on:
# by confidence, of all, and of each rule (right, judged).
_RIGHT = {Confidence.HIGH: 0.38, Confidence.MEDIUM: 0.25, Confidence.LOW: 0.03}
_RIGHT_OF_ALL = 0.3
_JUDGED = {
    "SYN101": (37, 59), "SYN102": (1, 3), "SYN103": (6, 14), "SYN104": (0, 3), "SYN105": (2, 7), "SYN106": (11, 27),
    "SYN107": (5, 18), "SYN108": (5, 9), "SYN109": (0, 2), "SYN111": (2, 7), "SYN112": (0, 14), "MOV101": (1, 21),
    "MOV102": (2, 11), "MOV103": (1, 3), "MOV104": (4, 18), "CMP101": (0, 4), "CMP102": (4, 9), "CMP103": (1, 4),
    "CMP104": (0, 1), "CMP114": (0, 4), "CMP115": (1, 10), "CMP116": (4, 5), "CMP119": (0, 1), "DAT101": (1, 1),
    "DAT102": (1, 9), "DAT104": (0, 2), "DAT105": (0, 4), "DAT106": (0, 8), "DAT107": (2, 4), "DAT108": (0, 3),
    "DAT110": (0, 1), "INF101": (0, 6), "INF103": (20, 32), "INF105": (0, 1), "INF106": (1, 1), "PRE101": (1, 8),
    "MEM102": (0, 2), "MEM103": (0, 2), "DST102": (2, 6), "DST103": (2, 2), "DST105": (0, 4), "DST106": (0, 4),
}  # fmt: skip
_PRIOR = 4  # findings that each rule is taken to have besides, as right as all
_MOST_RIGHT = 0.95
_SET_UP = 0.5  # of the steps: what is said of a set-up, such as a loader's, may concern one loop of several
_BESIDE = 0.1  # of a program's time goes into functions that nothing here calls in a loop
_EVALUATION = 0.03  # of a training's time goes into evaluation
_OFFLINE = 0.02  # of what somebody waits for goes into conversions and comparisons
_ONCE_A_PASS = 0.15  # of what a wait costs is left outside of loops and layers: the GPU has work queued before it
_WORKERS = 0.5  # of loading is hidden behind the step
_MINOR = 0.5  # where a rule itself says that the place matters less than most
_WAITS = "SYN"  # the family whose estimates are for one wait; those of others are for all of a step
_LOOPS_THAT_WAIT = ("CMP116",)  # whose remedy takes the waits away with the loop
_BLOCKING_COPIES = ("MOV101", "MOV103")
_WAITS_ANYWAY = 0.25  # of what such a copy costs is left where the step waits all the same


class _Priced(NamedTuple):
    """A finding, and what it costs by itself."""

    share: float
    finding: Finding


def sorted_by_cost(findings: Iterable[Finding]) -> list[Finding]:
    """The findings with their causes and costs, the costliest cause first; of equal ones in the order of the source.

    Waits of one file in loops of one kind are one cause, and so are findings of another rule in one file, and what
    stands as a copy in other files. They stand together, the costliest first, and have the cause's cost.
    """
    given = sorted(findings, key=lambda one: (one.path, one.cell or 0, one.span, one.code))
    trains = any(one.hot is not None and one.hot.kind in TRAINS for one in given)
    waiting = {_loop(one): one.code for one in given if one.code.startswith(_WAITS) and _loop(one) is not None}
    causes: dict[object, list[_Priced]] = {}
    for finding in given:
        one = _beside(finding, waiting.get(_loop(finding)))
        causes.setdefault(_cause(one), []).append(_Priced(cost(one, trains=trains), one))
    merged: dict[object, list[tuple[float, list[_Priced]]]] = {}
    for members in causes.values():
        members.sort(key=lambda one: -one.share)
        merged.setdefault(_copied(members[0].finding), []).append((_whole(members), members))
    priced = sorted(merged.values(), key=lambda copies: -max(whole for whole, _ in copies))
    return [
        replace(one.finding, cost=max(whole for whole, _ in copies), cause=place)
        for place, copies in enumerate(priced, 1)
        for _, members in sorted(copies, key=lambda copy: -copy[0])
        for one in members
    ]


def _cause(finding: Finding) -> object:
    """What findings have in common that one change mends."""
    if finding.hot is None:
        return finding
    if finding.code.startswith(_WAITS) or finding.code in _LOOPS_THAT_WAIT:
        return (_WAITS, finding.path, finding.hot.kind)
    return (finding.code, finding.path)


def _copied(finding: Finding) -> object:
    """What a finding has in common with its copies in other files: the rule, the function's name and what is said."""
    if finding.hot is None:
        return finding
    return (finding.code, finding.hot.function.rpartition(".")[2], finding.message)


def _whole(members: Sequence[_Priced]) -> float:
    """What a cause costs: of several functions the costliest.

    The waits of one function add up, but for those that are made once: after the first the GPU has nothing queued.
    """
    if not members[0].finding.code.startswith(_WAITS):
        return max(one.share for one in members)
    left: dict[str, float] = {}
    first: dict[str, float] = {}
    for one in members:
        hot = one.finding.hot
        function = hot.function if hot is not None else ""
        left.setdefault(function, 1.0)
        if hot is not None and hot.times > 1:
            left[function] *= 1 - one.share
        else:
            first[function] = max(first.get(function, 0.0), one.share)
    return 1 - min(left[function] * (1 - first.get(function, 0.0)) for function in left)


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
    is_in_pass = finding.hot is not None and finding.hot.kind == HeatKind.FORWARD
    if finding.code.startswith(_WAITS) and is_in_pass and times <= 1:
        share *= _ONCE_A_PASS
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
    if finding.is_offline and (finding.hot is None or finding.hot.kind != HeatKind.FORWARD):
        return _OFFLINE
    if finding.hot is None:
        return _SET_UP
    if trains and finding.hot.kind == HeatKind.INFERENCE:
        return _EVALUATION
    if finding.hot.kind in (LIBRARY, HeatKind.INFERENCE_CALL):
        return _BESIDE
    return _WORKERS if finding.hot.kind == HeatKind.DATA else 1.0


def _loop(finding: Finding) -> tuple[str, int] | None:
    """The step loop that a finding lies in, where it is known."""
    hot = finding.hot
    return None if hot is None or not hot.loop_line else (hot.loop_path, hot.loop_line)
