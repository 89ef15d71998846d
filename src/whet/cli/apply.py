"""whet apply: replay a recipe on a target."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.tuner.apply import apply_recipe
from whet.tuner.figures import load_call


def apply(
    recipe: Annotated[Path, typer.Argument(help="a recipe.toml that whet tune wrote")],
    target: Annotated[str, typer.Argument(help="as for whet tune")],
    out: Annotated[Path, typer.Option(help="a new directory for the artefact")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")] = False,
) -> None:
    """Replay a recipe on a target and save the result, to be loaded by whet.load(DIR)."""
    console = Console(stderr=as_json, highlight=False)
    applied = apply_recipe(recipe, target, out)
    if applied.differences:
        console.print("This recipe was proved on another machine; its speed here is not known:")
        for line in applied.differences:
            console.print(f"  {line}", markup=False)
    for step, reason in applied.dropped:
        console.print(f"left out {step}: {reason}", markup=False)
    for note in applied.notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"applied  {' + '.join(map(str, applied.steps)) or 'nothing'}", markup=False)
    before = "" if applied.quality_baseline is None else f"{applied.quality_baseline:.4g} before, "
    console.print(f"quality  {applied.quality_name}: {before}{applied.quality:.4g} after", markup=False)
    console.print(f"size     {applied.original_bytes / 1e6:.1f} MB before, {applied.size_bytes / 1e6:.1f} MB after")
    console.print(f"load it  {load_call(str(out), applied.libraries)}", markup=False)
    if as_json:
        print(applied.model_dump_json())
