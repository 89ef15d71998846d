"""Train a language model from a configuration: whet.train."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from whet.errors import OptionError
from whet.trainer.checkpoints import step_directories
from whet.trainer.config import TrainConfig, read_config
from whet.trainer.loop import CHECKPOINTS, TrainResult, run
from whet.trainer.setup import set_up
from whet.trainer.tuned import TUNED, Progress, is_tuned, tuned_recipe
from whet.ui.units import duration_s

Objective = Literal["throughput", "memory"]


def train(
    config: str | os.PathLike[str],
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    tune: Objective | None = None,
    tune_budget_s: float | str = 600.0,
    tune_progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a language model as a configuration says.

    Call this in the main thread: SIGTERM and Ctrl-C write a checkpoint and end the run.

    Args:
        config: The TOML file; see whet.trainer.config.TrainConfig.
        changes: Values in the place of the file's, as "optimizer.lr=1e-3".
        resume: Go on from the newest whole checkpoint of the run's directory. With tune, a search that was stopped goes
            on as well, and what a finished one found is taken.
        tune: First find the recipe that is the fastest, or the smallest, on this machine.
        tune_budget_s: Seconds for that.
        tune_progress: Is entered for the time of the search, and gives what is told of its progress.
        say: Shows a line to people; by default on standard error.

    Returns:
        What came of it.

    Raises:
        WhetError: Anything the user can mend.
    """
    say = say or partial(print, file=sys.stderr, flush=True)
    tune_budget_s = duration_s("tune_budget_s", tune_budget_s)
    read = read_config(Path(config), changes)
    found = read.out / TUNED
    if tune is not None:
        _check_tuning(read, found, resume=resume)
    if resume and is_tuned(found):
        read, tune = _with_recipe(read, found), None
    setup = set_up(read, say)
    if tune is not None:
        tuned_recipe(setup, found, tune, tune_budget_s, say, tune_progress)
        read = _with_recipe(read, found)
        setup = set_up(read, say)
        resume = False  # only the search went on
    say(f"{setup.model.name}; {setup.data.name}")
    if setup.steps:
        say(f"recipe: {' + '.join(map(str, setup.steps))}")
    return run(setup, resume=resume, say=say)


def _check_tuning(config: TrainConfig, directory: Path, *, resume: bool) -> None:
    """Raise OptionError where a search can neither begin nor go on in a directory."""
    if config.recipe is not None:
        raise OptionError(f"the configuration names the recipe {config.recipe}; leave it out, or leave out --tune")
    if config.batch.num_parts > 1:
        raise OptionError("--tune looks for the micro-batches too; leave batch.micro_batch_size out")
    has_begun = bool(step_directories(config.out / CHECKPOINTS))
    if not resume and (has_begun or directory.exists()):
        what = "run" if has_begun else "search"
        raise OptionError(f"{config.out} holds a {what} already; go on with it by --resume, or choose another out")
    if resume and has_begun and not is_tuned(directory):
        raise OptionError("a run goes on with the recipe that it began with; leave out --tune")
    if resume and not has_begun and not directory.exists():
        raise OptionError(f"{config.out} holds no search and no run to go on with; leave out --resume")


def _with_recipe(config: TrainConfig, directory: Path) -> TrainConfig:
    return config.model_copy(update={"recipe": directory})
