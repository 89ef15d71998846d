"""Find the recipe of a training run before it begins: whet train --tune."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from whet.core.recipe_file import FILE as RECIPE
from whet.trainer.setup import SetUp
from whet.tuner.listener import Listener
from whet.tuner.study import FILE as STUDY
from whet.tuner.tuning import tune

TUNED = "tuned"

Progress = AbstractContextManager[Listener]
"""Is entered while a search goes on, and gives what is told of its progress."""


def is_tuned(directory: Path) -> bool:
    """Return whether a search in this directory has come to its end."""
    return (directory / RECIPE).is_file()


def tuned_recipe(
    setup: SetUp,
    directory: Path,
    objective: str,
    budget_s: float,
    say: Callable[[str], None],
    progress: Progress | None = None,
) -> Path:
    """Tune a run on its own batches, and return the directory of the recipe.

    The recipe is empty where nothing was proved, so that the run goes on as it is. A search that was stopped in this
    directory goes on.

    Args:
        objective: "throughput" or "memory".
        budget_s: Seconds for everything.

    Raises:
        WhetError: The search cannot be made.
    """
    say(f"looking for the recipe with the best {objective}, {budget_s:.0f} s at most")
    with progress or nullcontext(Listener()) as listener:
        result = tune(
            setup.workload(),
            objective=objective,  # type: ignore[arg-type]
            budget_s=budget_s,
            out=directory,
            resume=(directory / STUDY).is_file(),
            listener=listener,
        )
    say(result.sentence)
    return directory
