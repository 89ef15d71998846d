"""Tune a training script from outside, with the options that people give: whet.tune_script."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from whet.errors import OutputError
from whet.files import names_in, writable_parent
from whet.measure.quiet import WAIT_S, OnBusy, Patience
from whet.scripts.script_command import ScriptCommand
from whet.tuner.goal import BUDGET_S, MAX_DROP_TRAINING, SCRIPT_STEPS
from whet.tuner.listener import Listener
from whet.tuner.result import Result
from whet.tuner.scripts.tuning import ScriptPlan, tune_planned
from whet.units import duration_s


def tune_script(
    command: Sequence[str],
    *,
    num_steps: int | None = None,
    max_drop: float | None = None,
    budget_s: float | str = BUDGET_S,
    out: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    patience: Patience | None = None,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest recipe for a training script that stays as it is, and prove it.

    The script runs in copies of the working directory, for some optimiser steps each time.

    Args:
        command: The Python command, as ["python", "train.py", "--epochs", "3"].
        num_steps: The most optimiser steps of each run; 40 by default.
        max_drop: How much worse the training loss may become, as a fraction; 0.0025 by default.
        budget_s: Seconds for everything, or text such as "5m".
        out: A new directory for the recipe and the result; one below whet-out by default.
        exclude: Techniques that are not tried.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: Seconds to wait in all.
        patience: In place of the two above, where the caller shows the waiting.
        listener: Is told of the progress.

    Raises:
        TargetError: The command cannot be run, or the loop of its script cannot be recognised.
        ModelError: The script does not train the same twice, or its loss is not finite.
        OptionError: An option is out of its range.
        OutputError: The directory cannot be used.
    """
    found = ScriptCommand.checked(command)
    plan = ScriptPlan(
        command=found,
        directory=_directory(found, None if out is None else Path(out)),
        num_steps=SCRIPT_STEPS if num_steps is None else num_steps,
        budget_s=duration_s("budget_s", budget_s),
        max_drop=MAX_DROP_TRAINING if max_drop is None else max_drop,
        exclude=tuple(exclude),
    )
    patience = patience or Patience(OnBusy.checked(on_busy), duration_s("busy_wait_s", busy_wait_s, may_be_zero=True))
    return tune_planned(plan, patience, listener or Listener())


def _directory(command: ScriptCommand, out: Path | None) -> Path:
    """Return the directory for the results: the one that was named, or a new one below whet-out.

    Raises:
        OutputError: It holds something already, or cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", command.name).lstrip(".") or "script"
    directory, number = out or Path("whet-out") / name, 2
    while out is None and directory.exists():
        directory, number = Path("whet-out") / f"{name}-{number}", number + 1
    if names_in(directory):
        raise OutputError(f"{directory} is not empty; choose another --out")
    writable_parent(directory)
    return directory
