"""Replay a recipe on a target: the techniques that hold here, saved as an artefact."""

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, Field

from whet.errors import OutputError
from whet.files import replace_directory, writable_parent
from whet.machine import describe
from whet.recipe import Recipe, Step
from whet.tuner.build import options_of
from whet.tuner.result import Agreement, QualityChange
from whet.tuner.search import isolated

_LIMIT_S = 900.0


class Applied(BaseModel):
    """What came of applying a recipe.

    dropped: steps that do not hold here, with reasons. differences: of machines. doubts: why the recipe would have been
    refused without force. drop: of the quality, as a fraction of the original's; None without finite outputs. change:
    the drop's interval, where the quality is scored sample by sample. max_drop: that the recipe allows, if it says.
    """

    out: str
    steps: list[Step]
    dropped: list[tuple[Step, str]] = Field(default_factory=list)
    differences: list[str] = Field(default_factory=list)
    doubts: list[str] = Field(default_factory=list)
    size_bytes: int
    original_bytes: int
    quality_name: str
    quality_baseline: float | None = None
    quality: float | None = None
    drop: float | None = None
    change: QualityChange | None = None
    max_drop: float | None = None
    agreement: Agreement
    notes: list[str] = Field(default_factory=list)


def apply_recipe(
    recipe: str | os.PathLike[str] | Recipe, target: str, out: str | os.PathLike[str], *, force: bool = False
) -> Applied:
    """Apply a recipe to a target and save the result in a new directory `out`, for whet.load.

    A recipe made on another machine is applied as far as it holds; what differs and what was dropped is returned.

    Args:
        recipe: A recipe, or the path of a recipe.toml.
        target: As for whet.tune.
        out: A directory that does not exist yet.
        force: Apply the recipe of another model, or one that costs more quality than it allows; the result's `doubts`
            say so.

    Raises:
        RecipeRefused: The recipe was made for another model, or the quality falls by more than it allows.
        RecipeError: The recipe is damaged.
        OutputError: `out` exists or cannot be written.
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
            "model": plan.model,
            "max_drop": None if plan.evidence is None else plan.evidence.max_drop,
            "force": force,
        }
        outcome = isolated(describe().most_bytes)("replay", arguments, Path(scratch), _LIMIT_S)
        if outcome.failure is not None:
            raise outcome.failure.as_error()
        assert outcome.value is not None
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{directory} cannot be made: {error.strerror}; choose another --out") from error
        replace_directory(Path(scratch) / "artefact", directory)
    allowed = None if plan.evidence is None else plan.evidence.max_drop
    return Applied.model_validate({**outcome.value, "out": str(directory), "max_drop": allowed})


apply = apply_recipe  # as whet.apply
