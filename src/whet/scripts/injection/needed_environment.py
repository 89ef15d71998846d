"""Find what a script's process must find in its environment when it starts, so that a recipe can be applied to it."""

import os
from collections.abc import Sequence

from whet.core.recipe import Step
from whet.measure.malloc import PRELOAD
from whet.techniques.technique import named
from whet.techniques.training import TRAINING_TABLE


def needed_environment(steps: Sequence[Step]) -> dict[str, str]:
    """Return the environment variables that the techniques of a recipe need.

    What they load before everything else comes before what this process's own LD_PRELOAD names, which stays.

    Raises:
        RecipeError: A technique needs something that is not installed.
    """
    needed: dict[str, str] = {}
    for step in steps:
        technique = named(step, TRAINING_TABLE)
        if technique.environment is not None:
            needed |= technique.environment(technique.options_of(step))
    if PRELOAD in needed and os.environ.get(PRELOAD):
        needed[PRELOAD] += f"{os.pathsep}{os.environ[PRELOAD]}"
    return needed
