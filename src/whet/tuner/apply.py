"""Replay a recipe on a target: the techniques that hold here, saved as an artefact."""

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, Field

from whet.errors import ArtefactError, OutputError
from whet.files import replace_directory, writable_parent
from whet.machine import describe
from whet.recipe import Recipe, Step
from whet.tuner.build import options_of
from whet.tuner.finalist import INPUTS
from whet.tuner.reloading import reload_refusal
from whet.tuner.result import Agreement
from whet.tuner.search import isolated

_LIMIT_S = 900.0


class Applied(BaseModel):
    """What came of applying a recipe. dropped: steps that do not hold here, with reasons. differences: of machines."""

    out: str
    steps: list[Step]
    dropped: list[tuple[Step, str]] = Field(default_factory=list)
    differences: list[str] = Field(default_factory=list)
    size_bytes: int
    original_bytes: int
    quality_name: str
    quality_baseline: float | None = None
    quality: float | None = None
    agreement: Agreement
    libraries: list[str] = Field(default_factory=list)  # what whet.load has to be given with `out`
    notes: list[str] = Field(default_factory=list)


def apply_recipe(recipe: str | os.PathLike[str] | Recipe, target: str, out: str | os.PathLike[str]) -> Applied:
    """Apply a recipe to a target and save the result in a new directory `out`, for whet.load.

    A recipe made on another machine is applied as far as it holds; what differs and what was dropped is returned.
    Raises RecipeError for a damaged recipe, OutputError where `out` exists or cannot be written, ArtefactError where a
    fresh process cannot load and run the result.
    """
    plan = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    for step in plan:
        options_of(step)
    directory = Path(out).absolute()
    if os.path.lexists(directory):
        raise OutputError(f"{directory} exists already; choose another --out")
    parent = writable_parent(directory)
    with tempfile.TemporaryDirectory(prefix=".whet-", dir=parent) as scratch:
        arguments = {
            "target": target,
            "steps": [step.model_dump() for step in plan],
            "directory": f"{scratch}/artefact",
            "machine": dict(plan.machine) if plan.fingerprint else None,
        }
        run = isolated(describe().most_bytes)
        outcome = run("replay", arguments, Path(scratch), _LIMIT_S)
        if outcome.failure is not None:
            raise outcome.failure.as_error()
        assert outcome.value is not None
        value = outcome.value
        if why := reload_refusal(
            run,
            Path(scratch) / "artefact",
            inputs=Path(scratch) / INPUTS,
            libraries=value["libraries"],
            places=value.pop("places"),
            num_threads=value.pop("num_threads"),
        ):
            raise ArtefactError(f"what the recipe makes of this model cannot be saved: {why}")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{directory} cannot be made: {error.strerror}; choose another --out") from error
        replace_directory(Path(scratch) / "artefact", directory)
    return Applied.model_validate({**value, "out": str(directory)})
