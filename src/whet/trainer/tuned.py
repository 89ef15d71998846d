"""Find the recipe of a training run before it begins: whet train --tune."""

from collections.abc import Callable
from pathlib import Path

from whet.trainer.setup import SetUp
from whet.tuner.tuning import tune

TUNED = "tuned"


def tuned_recipe(setup: SetUp, directory: Path, objective: str, budget_s: float, say: Callable[[str], None]) -> Path:
    """Tune a run on its own batches, and return the directory of the recipe.

    The recipe is empty where nothing was proved, so that the run goes on as it is.

    Args:
        setup: What the run was set up with.
        directory: The directory for the search.
        objective: "throughput" or "memory".
        budget_s: Seconds for everything.
        say: Shows a line to people.

    Raises:
        WhetError: The search cannot be made.
    """
    say(f"looking for the recipe with the best {objective}, {budget_s:.0f} s at most")
    result = tune(setup.workload(), objective=objective, budget_s=budget_s, out=directory)  # type: ignore[arg-type]
    say(result.sentence)
    return directory
