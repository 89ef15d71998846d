"""Replay a recipe on a target: whet apply."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.core.recipe_file import parsed
from whet.errors import RecipeRefused
from whet.files import check_new_directory
from whet.measure.fast_import import large_imports
from whet.workloads.target_name import check_name

if TYPE_CHECKING:
    from rich.console import Console

    from whet.tuner.apply import Applied

_REFUSED = 3

NAMES = {"target": check_name, "recipe": lambda given: parsed(Path(given))}
"""What checks a parameter as it was typed; see typed.py."""


def apply(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="a recipe.toml that whet tune wrote")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="the target, named as for whet tune")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="a new directory for the artefact",
            show_default="none for a recipe that cannot be saved",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="apply it although it was made for another model, or costs more quality than it allows"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")] = False,
) -> None:
    """Replay a recipe on a target, and save the result for whet.load(DIR).

    A recipe that cannot be saved, such as one with torch_compile, is applied and judged, and nothing is written.
    The exit code is 3, and nothing is written, where the recipe was made for another model or costs more quality than
    it allows.
    """
    from whet.core.recipe import Recipe  # pydantic, which help does without

    plan = Recipe.read(recipe).checked_for("inference")
    if out is not None:
        check_new_directory(out)
    with large_imports():
        from rich.console import Console

        from whet.tuner.apply import apply_recipe
    console = Console(stderr=as_json, highlight=False)
    progress = Console(stderr=True, highlight=False)
    try:
        with progress.status(f"applying {recipe} to {target}, which may take some minutes"):
            applied = apply_recipe(plan, target, out, force=force)
    except RecipeRefused as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(_REFUSED) from None
    _show(console, applied, recipe, out)
    if as_json:
        print(applied.model_dump_json())


def _show(console: "Console", applied: "Applied", recipe: Path, out: Path | None) -> None:
    """Say what was applied and what was not, what it costs, and how the result is used."""
    from whet.tuner import figures

    for doubt in applied.doubts:
        console.print(f"applied by force: {doubt}", markup=False)
    if applied.differences:
        console.print("This recipe was proved on another machine; its speed here is not known:")
        for line in applied.differences:
            console.print(f"  {line}", markup=False)
    for step, reason in applied.dropped:
        console.print(f"left out {step}: {reason}", markup=False)
    for note in applied.notes:
        console.print(f"note: {note}", markup=False)
    console.print(_done(applied), markup=False)
    before = "" if applied.quality_baseline is None else f"{applied.quality_baseline:.4g} before, "
    after = "none" if applied.quality is None else f"{applied.quality:.4g}"
    console.print(f"quality  {applied.quality_name}: {before}{after} after", markup=False)
    if applied.change is not None:
        console.print(f"         {figures.change(applied.change, applied.max_drop or 0.0)}", markup=False)
    if applied.out:
        console.print(f"size     {applied.original_bytes / 1e6:.1f} MB before, {applied.size_bytes / 1e6:.1f} MB after")
        if not applied.steps and applied.size_bytes > applied.original_bytes:
            console.print("         beside the weights, it holds the model's graph and its constants")
        console.print(f"load it  {figures.load_call(str(out), applied.libraries)}", markup=False)
    else:
        console.print("saved    nothing: torch.compile makes it anew from the model's own code in each process")
        console.print(f"use it   whet.apply({str(recipe)!r}, MODEL, INPUTS) in Python", markup=False)


def _done(applied: "Applied") -> str:
    """Say which steps were applied, or why there are none."""
    if applied.steps:
        return f"applied  {' + '.join(map(str, applied.steps))}"
    if applied.dropped:
        return "applied  nothing: no step of the recipe applies here, and the model is saved as it is"
    return "The recipe has no steps: the tuning run kept the original. It is saved as it is."
