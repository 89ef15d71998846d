"""Run a training script with a recipe applied to its loop: whet run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.core.recipe_file import parsed
from whet.measure.fast_import import large_imports
from whet.scripts.injection.script_command import ScriptCommand

_Command = Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND...", help="the command, as: -- python train.py --epochs 3, or -- torchrun ..."),
]
_RecipeFile = Annotated[
    Path, typer.Option(metavar="FILE", help="a recipe.toml for training, or the directory of a tuning run")
]

NAMES: dict[str, Callable[[Any], Any]] = {"command": ScriptCommand.checked, "recipe": lambda given: parsed(Path(given))}
"""What checks a parameter as it was typed; see typed.py."""


def run(command: _Command, recipe: _RecipeFile) -> None:
    """Run a training script to its end, with a recipe applied to its loop. No line of the script changes.

    What is applied is said on standard error. The exit code is the script's; 2 if the recipe cannot be applied.
    """
    from whet.core.recipe import Recipe  # pydantic, which help does without

    ScriptCommand.checked(command)
    plan = Recipe.read(recipe).checked_for("training")
    with large_imports():
        from whet.scripts.injection.command import run_script
    sys.exit(run_script(command, plan))
