"""Compare what people name: targets on the command line, workloads and models in memory."""

import contextlib
import tempfile
from pathlib import Path
from typing import TypeVar

from torch import nn

from whet.comparison.claim import Claim
from whet.comparison.compare import compare as compare_sides
from whet.comparison.schedules import ABBA, Rounds, Schedule, Turns
from whet.comparison.stopping import Fixed, Sequential, Stop, UntilClear
from whet.comparison.turns import take_turns
from whet.comparison.variant import Variant
from whet.core.workload.measurables import AnyWorkload, measurable_of
from whet.core.workload.training import seed_everything
from whet.errors import OptionError, StreamTarget, TargetError, type_name
from whet.measure.measurable import Measurable
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.ui.units import duration_s
from whet.workloads.handover import hand_over
from whet.workloads.target import open_any
from whet.workloads.target_name import check_name

T = TypeVar("T")

SCHEDULES: dict[str, Schedule] = {"rounds": Rounds(), "turns": Turns(take_turns), "abba": ABBA()}
"""The schedules by the names that `compare` takes."""

STOPS: dict[str, Stop] = {"fixed": Fixed(noise_from="pairs"), "sequential": Sequential(), "until-clear": UntilClear()}
"""The stopping rules by the names that `compare` takes."""


def compare(
    old: str | AnyWorkload,
    new: str | AnyWorkload,
    *,
    schedule: str | Schedule = "turns",
    stop: str | Stop = "fixed",
    budget_s: float | str = 0.5,
    time_limit_s: float | str = 300.0,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
) -> Claim:
    """Tell whether the new workload is faster than the old one, and whether it does the same.

    Both are built and measured in processes of their own. A call of a model is timed, or an optimiser step of a
    training, or a frame of a stream. The outputs of the two are compared, or their losses step by step.

    Args:
        old: A target's name, as for `whet tune`, or a workload in memory.
        new: The same for the new variant. Both must be of one kind.
        schedule: "turns" (pairs of processes that alternate block by block), "rounds" or "abba" (one process after the
            other); or a schedule.
        stop: "fixed" (eight pairs: is it faster?), "sequential" (as few pairs as tell: is it slower?) or "until-clear"
            (a screening); or a stopping rule.
        budget_s: Seconds of timing in each process.
        time_limit_s: Seconds after which a process is ended.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: Seconds to wait in all.

    Returns:
        The claim, with its verdict and its evidence.

    Raises:
        TargetError: One of them cannot be had or measured; the message says which, what was wrong and what to do.
        OptionError: An option is none of its choices.
    """
    budget_s, time_limit_s = duration_s("budget_s", budget_s), duration_s("time_limit_s", time_limit_s)
    busy_wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    patience = QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    chosen_schedule = _chosen(SCHEDULES, schedule, "schedule")
    chosen_stop = _chosen(STOPS, stop, "stop")
    for name, workload in (("old", old), ("new", new)):
        _check(name, workload)
    with tempfile.TemporaryDirectory(prefix="whet-compare-") as scratch:
        sides = [
            _variant(name, workload, Path(scratch) / name, budget_s, time_limit_s)
            for name, workload in (("old", old), ("new", new))
        ]
        patience.begin()
        claim = compare_sides(*sides, schedule=chosen_schedule, stop=chosen_stop, patience=patience)
    if claim.failure:
        raise TargetError(f"the {claim.failed} variant cannot be measured: {claim.failure}")
    kinds = {run.evidence.kind for pair in claim.pairs for run in pair if run.evidence is not None}
    if len(kinds) > 1:
        raise TargetError(
            "old and new are of two kinds: one is calls of a model, the other steps of a training; give two of one kind"
        )
    return claim


def _check(name: str, workload: object) -> None:
    """Raise TargetError where a side is neither a target's name nor a workload. Nothing is built."""
    if isinstance(workload, str):
        with contextlib.suppress(StreamTarget):  # a stream can be compared too
            check_name(workload)
    elif isinstance(workload, nn.Module):
        raise TargetError(
            f"{name} is a model without inputs; give whet.Workload(model=MODEL, inputs=[BATCH]) for each side"
        )
    elif not isinstance(workload, AnyWorkload):
        raise TargetError(
            f"{name} is {type_name(workload)}; give a target's name, such as 'FILE.py:FUNCTION', or a whet.Workload"
        )


def opened(address: str) -> Measurable:
    """Build the Measurable of a target, or of a workload that was handed over. This runs in the child process."""
    seed_everything(0)  # so that both sides draw the same weights and data
    return measurable_of(open_any(address))


def _variant(name: str, workload: str | AnyWorkload, directory: Path, budget_s: float, time_limit_s: float) -> Variant:
    """Return one of the two sides. A workload in memory is written for its processes."""
    directory.mkdir()
    address = workload if isinstance(workload, str) else hand_over(workload, directory / "workload.pkl")
    return Variant(
        name=name,
        build=opened,
        arguments={"address": address},
        directory=directory / "runs",
        budget_s=budget_s,
        time_limit_s=time_limit_s,
    )


def _chosen(choices: dict[str, T], given: str | T, name: str) -> T:
    """Return a choice by its name, or what was given in its place."""
    if not isinstance(given, str):
        return given
    if given not in choices:
        raise OptionError(f"{name} {given!r} is not known; give one of {', '.join(choices)}")
    return choices[given]
