"""Train a language model from a configuration: whet.train."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from whet.errors import OptionError, RanksError
from whet.measure.device import usable_device
from whet.parallel.division import division_of
from whet.parallel.joining import joined
from whet.parallel.ranks import Ranks
from whet.parallel.started import restart_count, started_together
from whet.trainer.checkpoints import step_directories
from whet.trainer.config import TrainConfig, read_config
from whet.trainer.loop import CHECKPOINTS, run
from whet.trainer.result import TrainResult
from whet.trainer.setup import SetUp, set_up
from whet.trainer.tuned import TUNED, Progress, is_tuned, tuned_recipe
from whet.ui.units import duration_s

_SET_UP_S = 24 * 3600.0  # to split a large text into tokens may take long
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
    if started_together():
        if tune is not None:
            raise OptionError("--tune looks for a recipe in one process; find it without torchrun, then start all")
        return _train_together(read, resume=resume, say=say)
    division = division_of(read.parallel, Ranks(), usable_device(read.device, "device"))
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
    _introduce(setup, say)
    return run(setup, resume=resume, say=say, division=division)


def _train_together(config: TrainConfig, *, resume: bool, say: Callable[[str], None]) -> TrainResult:
    """Train on the processes that torchrun started, of which this is one."""
    kind = config.device.partition(":")[0]
    with joined(kind if torch.cuda.is_available() else "cpu", config.parallel.timeout_s) as ranks:
        if not ranks.is_first:
            say = _say_nothing
        name = kind if kind == "cpu" else f"{kind}:{ranks.local_rank}"
        device = ranks.all_succeed("the devices", lambda: usable_device(name, "device"))
        division = ranks.all_succeed("the plan", lambda: division_of(config.parallel, ranks, device))
        recipe = config.out / TUNED
        if resume and is_tuned(recipe):
            config = _with_recipe(config, recipe)
        # The first process splits the text into tokens, and the others on its machine find them.
        opened = partial(set_up, config, say, in_parts=division.divides_units)
        setup = ranks.all_succeed("the set-up", lambda: opened() if ranks.is_first else None, _SET_UP_S)
        setup = ranks.all_succeed("the others' set-up", lambda: setup or opened(), _SET_UP_S)
        told = ranks.gather("what is trained", setup.identity)
        for rank, identity in enumerate(told):
            if differs := [name for name in identity if identity[name] != told[0].get(name)]:
                raise RanksError(
                    f"rank {rank} has another {differs[0]} than rank 0; give all machines the same files and "
                    "configuration",
                    is_told=not ranks.is_first,
                )
        _introduce(setup, say)
        sizes = {name: degree for name, degree in division.degrees.sizes.items() if degree > 1}
        say(f"{ranks.world_size} processes: {', '.join(f'{name} {degree}' for name, degree in sizes.items())}")
        has_begun = bool(step_directories(config.out / CHECKPOINTS))
        resume = resume or ranks.of_first("whether to resume", restart_count() > 0 and has_begun)
        return run(setup, resume=resume, say=say, division=division)


def _say_nothing(text: str) -> None:
    """Say nothing: the first process tells people."""


def _introduce(setup: SetUp, say: Callable[[str], None]) -> None:
    say(f"{setup.model.name}; {setup.data.name}")
    if setup.steps:
        say(f"recipe: {' + '.join(map(str, setup.steps))}")


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
