"""Show on the terminal what bounds the step of a training: `whet profile TARGET` on a training run."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.cli.busy import INCONCLUSIVE, patience_of
from whet.techniques.costs.layer_profile import TrainingLayer
from whet.tuner.target_profile.training_layers import TrainingProfile, profile_training
from whet.ui.figures import DASH, duration, num_bytes, one_line, operations, percent
from whet.ui.terminal_tables import plain_table


def run_training(
    target: str, *, out: Path | None, rows: int, limit_s: float, on_busy: str, busy_wait: str, as_json: bool
) -> None:
    """Profile a training run, and show its phases and its layers. Raises a WhetError where it cannot be had."""
    console = Console(stderr=as_json, highlight=False)
    patience = patience_of(on_busy, busy_wait, console)
    with console.status(f"profiling the training {one_line(target)}"):
        found = profile_training(target, out=out, limit_s=limit_s, patience=patience)
    show_training(console, found, rows=rows)
    if out is not None:
        console.print(f"\nwritten  {out / 'profile.json'}", markup=False)
    if as_json:
        place = None if out is None else str(out)
        print(json.dumps({"target": target, **found.model_dump(mode="json"), "out": place}))
    if found.busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


def show_training(console: Console, found: TrainingProfile, *, rows: int = 12) -> None:
    """Show the phases of a step, the layers that take most of it, and what is left out, within 80 columns."""
    console.print()
    if found.busy:
        console.print(Text(f"The machine was busy: {found.busy}. Times may be too long.", "yellow"))
    console.print(Text(found.sentence, "bold"))
    console.print()
    console.print(_phases(found))
    console.print()
    console.print(_layers(found.layers.layers, rows))
    notes = [*found.notes]
    if hidden := len(found.layers.layers) - rows:
        notes += [f"{hidden} layers that take less time are not shown; --rows shows more"] if hidden > 0 else []
    for note in notes:
        console.print(Text(f"note: {note}", "dim"))


def _phases(found: TrainingProfile) -> Table:
    table = plain_table()
    table.add_column("part of a step", no_wrap=True)
    for name in ("time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    total = found.step.total_s or 1.0
    for words, seconds in found.step.parts.values():
        share = seconds / total
        bar = Text("█" * round(20 * share), "cyan")
        table.add_row(words, duration(seconds, like=total), percent(share, decimals=1), bar)
    table.add_row("step", duration(found.step.total_s), "100%", "", style="bold")
    return table


def _layers(layers: Sequence[TrainingLayer], rows: int) -> Table:
    """Return the layers that take the most time, longest first."""
    table = plain_table()
    table.add_column("layer", ratio=1, overflow="fold", min_width=16)
    for name in ("forward", "backward", "share", "FLOP", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    table.add_column("of limit", justify="right", no_wrap=True)
    total = sum(layer.time_s for layer in layers) or 1.0
    longest = max((layer.time_s for layer in layers), default=None)
    for layer in sorted(layers, key=lambda one: -one.time_s)[:rows]:
        table.add_row(
            Text(one_line(layer.name)),
            duration(layer.forward_s, like=longest),
            duration(layer.backward_s, like=longest),
            percent(layer.time_s / total, decimals=0),
            operations(layer.flops + layer.backward_flops, short=True) if layer.flops else DASH,
            num_bytes(layer.num_bytes + layer.backward_bytes),
            layer.bound.removesuffix("-bound"),
            percent(layer.share_of_limit),
        )
    return table
