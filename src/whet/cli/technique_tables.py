"""Show the techniques on a terminal: whet techniques."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from whet.techniques import FOLLOWING
from whet.techniques.catalogue import MeasuredRow, TechniqueHere, by_stage

_STAGES = {
    "memory": "what is kept from forward to backward",
    "optimizer": "how parameters are updated",
    "compiler": "generated code",
    "structure": "another graph, the same numbers",
    "precision": "fewer bits",
    "layout": "another order in memory",
    "backend": "a compiler or another runtime",
    "runtime": "how the process runs it",
}


def show_list(console: Console, found: Iterable[TechniqueHere], trained: Iterable[TechniqueHere]) -> None:
    """Show the techniques for calls and for training by stage, and which of them can run here."""
    _show_stages(console, found)
    console.print("[bold]planned[/bold]  [dim]for inference, not in this version of whet[/dim]")
    table = _columns()
    for name, reason in FOLLOWING.items():
        table.add_row(name, "no", escape(reason))
    console.print(Padding(table, (0, 0, 1, 2)))
    _show_stages(console, trained, of="training: ")
    console.print("whet techniques NAME shows a card. whet tune says what applies to a model of yours.")


def _show_stages(console: Console, found: Iterable[TechniqueHere], *, of: str = "") -> None:
    for stage, members in by_stage(found).items():
        console.print(f"[bold]{of}{stage}[/bold]  [dim]{_STAGES[stage]}[/dim]")
        table = _columns()
        for technique in members:
            text = escape(technique.title)
            if not technique.can_run:
                text += f"\n[yellow]Cannot run here: {escape(technique.reason)}[/yellow]"
            elif technique.refused:
                text += f"\n[dim]Not here: {escape(_refused(technique.refused))}[/dim]"
            table.add_row(technique.name, "yes" if technique.can_run else "[yellow]no[/yellow]", text)
        console.print(Padding(table, (0, 0, 1, 2)))


def show_card(console: Console, technique: TechniqueHere) -> None:
    console.print(f"[bold]{technique.name}[/bold]  {'training, ' if technique.loops else ''}stage {technique.stage}")
    console.print(escape(technique.title))
    where = "It can run on this machine." if technique.can_run else f"Cannot run here: {technique.reason}"
    console.print(where, style="" if technique.can_run else "yellow", markup=False)
    table = _columns(2)
    for section, text in technique.sections.items():
        table.add_row(section, escape(" ".join(text.split())))
    console.print()
    console.print(table)
    console.print()
    _show_options(console, technique)
    console.print()
    if technique.loops:
        _show_loops(console, technique.loops)
    else:
        _show_measured(console, technique.measured)


def _show_loops(console: Console, loops: Mapping[str, str]) -> None:
    console.print(f"It bears: {', '.join(use for use, why in loops.items() if not why)}.", markup=False)
    for use, why in loops.items():
        if why:
            console.print(f"It refuses {use}: {why}.", markup=False)


def _show_options(console: Console, technique: TechniqueHere) -> None:
    if not technique.options:
        console.print("It has no options.")
        return
    table = Table(title="options", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    with_text = any(option.text for option in technique.options)
    for heading in ("option", "default", "whet tune tries", *(["what it does"] if with_text else [])):
        table.add_column(heading, overflow="fold")
    for option in technique.options:
        tried = ", ".join(map(_value, option.tried)) or "the default only"
        table.add_row(option.name, _value(option.default), tried, *([escape(option.text)] if with_text else []))
    console.print(table)
    for paragraph in filter(None, technique.remarks.split("\n\n")):
        console.print(" ".join(paragraph.split()), markup=False)
    if technique.refused:
        console.print(f"Not here: {_refused(technique.refused)}", markup=False)


def _show_measured(console: Console, rows: tuple[MeasuredRow, ...]) -> None:
    if not any(row.is_alone for row in rows):
        console.print("It has not been measured on its own yet.")
    if not rows:
        return
    table = Table(title="measured", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model")
    table.add_column("speedup", justify="right")
    table.add_column("95%")
    table.add_column("recipe, machine, quality", overflow="fold")
    for row in rows:
        interval = "screening" if row.ci95 is None else f"{row.ci95[0]:.2f}–{row.ci95[1]:.2f}"
        about = "\n".join(filter(None, (row.recipe, row.chip, row.quality)))
        table.add_row(escape(row.model), f"{row.speedup:.2f}x", interval, escape(about))
    console.print(table)


def _columns(num_columns: int = 3) -> Table:
    """Return a table without lines, whose last column takes what is left of the width."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(num_columns - 1):
        table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    return table


def _refused(values: dict[str, tuple[Any, ...]]) -> str:
    return "; ".join(f"{name}={', '.join(map(_value, refused))}" for name, refused in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)
