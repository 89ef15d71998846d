"""Tune a training script from outside, with the options that people give: whet.tune_script."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from whet.errors import OptionError
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.scripts.injection.script_command import ScriptCommand
from whet.tuner.asked import Asked
from whet.tuner.driver import run
from whet.tuner.goal import BUDGET_S, MAX_SLOWDOWN, SCRIPT_STEPS, Goal, Objective
from whet.tuner.kind import OtherKind
from whet.tuner.listener import Listener
from whet.tuner.result import Result
from whet.tuner.scripts.kind import ScriptKind
from whet.tuner.scripts.runs import LEAST_STEPS
from whet.ui.units import duration_s


def tune_script(
    command: Sequence[str],
    *,
    num_steps: int | None = None,
    objective: Objective = "throughput",
    max_drop: float | None = None,
    max_slowdown: float = MAX_SLOWDOWN,
    max_memory_bytes: int | None = None,
    budget_s: float | str = BUDGET_S,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    resume: bool = False,
    exclude: Sequence[str] = (),
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    listener: Listener | None = None,
) -> Result:
    """Find the best recipe for a training script that stays as it is, and prove it.

    The script runs in copies of the working directory, for some optimiser steps each time.

    Args:
        command: The Python command, as ["python", "train.py", "--epochs", "3"].
        num_steps: The most optimiser steps of each run; 40 by default.
        objective: What to improve: "throughput" or "memory".
        max_drop: How much worse the training loss may become, as a fraction; 0.0025 by default.
        max_slowdown: For the memory: how many times the original's time a step may take.
        max_memory_bytes: What a step may take above what the process held before the script began.
        budget_s: Seconds for everything, or text such as "5m".
        out: A new directory for the recipe, the report and the result; one below whet-out by default.
        storage: An Optuna URL, for several machines of one kind to share a search.
        resume: Go on with the search that `out` or `storage` holds.
        exclude: Techniques that are not tried.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: Seconds to wait in all.
        listener: Is told of the progress.

    Raises:
        TargetError: The command cannot be run, or the loop of its script cannot be recognised.
        ModelError: The script does not train the same twice, or its loss is not finite.
        OptionError: An option is out of its range.
        OutputError: The directory cannot be used.
    """
    found = ScriptCommand.checked(command)
    steps, seconds = SCRIPT_STEPS if num_steps is None else num_steps, duration_s("budget_s", budget_s)
    if steps < LEAST_STEPS:
        raise OptionError(f"--steps {steps} are too few to time and to prove; give {LEAST_STEPS} or more")
    asked = Asked(
        Goal.checked(objective, max_drop, max_memory_bytes, seconds, max_slowdown),
        seconds,
        str(_directory(found, out, resume=resume)),
        storage or "",
        resume,
        tuple(exclude),
    )
    listener = listener or Listener()
    wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    patience = QuietWait(OnBusy.checked(on_busy), wait_s, report=listener.waiting)
    result = run(ScriptKind(asked, found, steps), patience, listener)
    assert not isinstance(result, OtherKind)
    return result


def _directory(command: ScriptCommand, out: str | os.PathLike[str] | None, *, resume: bool) -> Path:
    """Return the directory for the results: the one that was named, or a new one below whet-out."""
    if out is not None:
        return Path(out)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", command.name).lstrip(".") or "script"
    directory, number = Path("whet-out") / name, 2
    while directory.exists() and not resume:
        directory, number = Path("whet-out") / f"{name}-{number}", number + 1
    return directory
