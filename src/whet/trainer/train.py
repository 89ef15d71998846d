"""Train a language model from a configuration: whet.train."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from whet.errors import OptionError
from whet.trainer.config import TrainConfig, read_config
from whet.trainer.loop import TrainResult, run
from whet.trainer.setup import set_up
from whet.trainer.tuned import TUNED, tuned_recipe

Objective = Literal["throughput", "memory"]


def train(
    config: str | os.PathLike[str],
    changes: Sequence[str] = (),
    *,
    resume: bool = False,
    tune: Objective | None = None,
    tune_budget_s: float = 600.0,
    say: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a language model as a configuration says.

    Call this in the main thread: SIGTERM and Ctrl-C write a checkpoint and end the run.

    Args:
        config: The TOML file; see whet.trainer.config.TrainConfig.
        changes: Values in the place of the file's, as "optimizer.lr=1e-3".
        resume: Go on from the newest whole checkpoint of the run's directory.
        tune: First find the recipe that is the fastest, or the smallest, on this machine.
        tune_budget_s: Seconds for that.
        say: Shows a line to people; by default on standard error.

    Returns:
        What came of it.

    Raises:
        WhetError: Anything the user can mend.
    """
    say = say or _on_standard_error
    read = read_config(Path(config), changes)
    if tune is not None and read.recipe is not None:
        raise OptionError(f"the configuration names the recipe {read.recipe}; leave it out, or leave out --tune")
    if tune is not None and read.batch.num_parts > 1:
        raise OptionError("--tune looks for the micro-batches too; leave batch.micro_batch_size out")
    if tune is not None and resume:
        raise OptionError("a run goes on with the recipe that it began with; leave out --tune or --resume")
    found = read.out / TUNED
    if tune is None and resume and found.is_dir():
        read = _with_recipe(read, found)
    setup = set_up(read, say)
    if tune is not None:
        read = _with_recipe(read, tuned_recipe(setup, found, tune, tune_budget_s, say))
        setup = set_up(read, say)
    say(f"{setup.model.name}; {setup.data.name}")
    if setup.steps:
        say(f"recipe: {' + '.join(map(str, setup.steps))}")
    return run(setup, resume=resume, say=say)


def _with_recipe(config: TrainConfig, directory: Path) -> TrainConfig:
    return config.model_copy(update={"recipe": directory})


def _on_standard_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
