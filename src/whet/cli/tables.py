"""Show on a terminal what `whet tune` found: the final comparison, the verdict, and a line for each trial."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.artefact.runtime import MODEL
from whet.core.recipe import Step
from whet.core.recipe_file import FILE as RECIPE
from whet.tuner import figures
from whet.tuner.headline import headline
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.ui.terminal_tables import plain_table

VERDICTS = {
    "pass": ("PASS", "green"),
    "fail": ("FAIL", "red"),
    "inconclusive": ("INCONCLUSIVE", "yellow"),
    "screened": ("screening", "dim"),
}
HEADLINES = {
    "gain": ("GAIN", "bold green"),
    "no-gain": ("NO GAIN", "bold"),
    "failed": ("FAILED", "bold red"),
    "inconclusive": ("INCONCLUSIVE", "bold yellow"),
}
_STATUSES = {
    "done": "green",
    "rejected": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "refused": "dim",
    "running": "dim",
}


def show_result(console: Console, result: Result) -> None:
    """Show the verdict, the original, torch.compile alone and the finalists, and the paths, within 80 columns."""
    show_verdict(console, result, _table)
    _show_places(console, result)


def show_verdict(console: Console, result: Result, table_of: Callable[[Result], Table]) -> None:
    """Show the verdict and, unless the machine was too busy for figures, a table, with empty lines around them."""
    console.print()
    show_headline(console, result)
    console.print()
    if not result.is_disturbed:
        console.print(table_of(result))
        console.print()


def show_files(console: Console, result: Result, files: Mapping[str, str], width: int = 0) -> None:
    """Show the paths of files that were written, each behind what it is in so many characters."""
    for name, file in files.items():
        path = figures.one_line(str(figures.shortened(result.directory / file)))
        console.print(Text.assemble((f"{name:<{width}}  ", "dim"), path), overflow="fold")


def _table(result: Result) -> Table:
    table = plain_table()
    table.add_column("variant", ratio=1, min_width=15, overflow="fold")
    table.add_column("latency", justify="right")
    table.add_column(Text("speedup\n95%"), justify="right")
    table.add_column("faster?")
    quality = figures.one_line(result.quality_name) if figures.has_metric(result) else "cosine"
    if any(point.change is not None for point in result.finalists):
        quality += "\ndrop, 95%"
    table.add_column(Text(quality), justify="right", max_width=9, overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("memory", justify="right")
    for point in figures.final_points(result):
        table.add_row(*_cells(result, point), style="bold" if point.label == result.best.label else "")
    return table


def show_headline(console: Console, result: Result) -> None:
    word, style = HEADLINES[result.verdict]
    if result.verdict == "gain" and result.best.change is not None and not result.best.change.is_shown:
        style = "bold yellow"
    said = headline(result)
    repeats = said.words.lower().startswith(word.lower())
    console.print(Text(said.words, style) if repeats else Text.assemble((word, style), "  ", (said.words, "bold")))
    if said.details:
        console.print(Text(figures.one_line(said.details), "dim" if result.verdict == "gain" else ""))


def show_trial(console: Console, record: TrialRecord) -> None:
    """Show one line for a trial that ended. Its figures are screening figures."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{record.status:<8}", _STATUSES[record.status])
    line.append(f"{figures.DASH if record.busy else figures.ratio(record.speedup):>8}")
    line.append(f"{figures.DASH if record.busy else figures.duration(record.latency_ms):>9}")
    line.append(f"{'drop ' + figures.percent(record.drop) if record.drop is not None else figures.DASH:>13}", "dim")
    line.append("  ")
    names, options = names_of(record.steps), _options(record.steps)
    line.append(names)
    reason = figures.one_line(record.reason).removeprefix(f"{names}: ")
    if record.busy:
        reason = f"disturbed, as {figures.one_line(record.busy)}"
    if reason:
        line.append(f": {reason}", "dim")
    elif options:
        line.append(f" {options}", "dim")
    console.print(line, no_wrap=True, overflow="ellipsis")
    for note in record.notes:
        if note.startswith("fixed to batch"):
            text = Text(f"  {figures.one_line(note)}", "dim")
            console.print(text, no_wrap=True, overflow="ellipsis")


def _cells(result: Result, point: MeasuredVariant) -> list[Text]:
    baseline = result.baseline
    name = Text(names_of(point.steps))
    if point.steps and figures.is_compile_only(result, point):
        name = Text("torch.compile alone")
    if point.label == result.best.label:
        name.append("  kept" if not point.steps else "  winner", "green")
    if point.fixed_batch is not None:
        name.append(f"\nfixed to batch {point.fixed_batch}", "dim")
    is_shown = bool(point.steps) and not point.doubt  # a factor that cannot be believed is not shown
    speedup = Text(figures.ratio(point.speedup) if is_shown else figures.DASH)
    if is_shown and figures.interval(point.speedup_ci95) != figures.DASH:
        speedup.append(f"\n{figures.interval(point.speedup_ci95)}", "dim")
    word, style = VERDICTS.get(point.verdict, (figures.DASH, ""))
    cosine = point.agreement.cosine if point.agreement else None
    latency = Text(figures.duration(point.latency_ms, like=baseline.latency_ms))
    score = Text(figures.score(point.quality) if figures.has_metric(result) else figures.cosine(cosine))
    if point.change is not None:
        score.append(f"\n{figures.most_drop(point.change)}", "dim" if point.change.is_shown else "yellow")
    if point.beside_ms is not None:
        latency.append(f"\nof {figures.duration(point.beside_ms, like=baseline.latency_ms)}", "dim")
    return [
        name,
        latency,
        speedup,
        Text(word, style),
        score,
        Text(figures.num_bytes(point.size_bytes or None, like=baseline.size_bytes or None)),
        Text(figures.num_bytes(point.peak_bytes or None, like=baseline.peak_bytes or None)),
    ]


def _show_places(console: Console, result: Result) -> None:
    if not result.out:
        return
    model = {"model": MODEL} if result.has_model else {}
    show_files(console, result, {"report": "report.html", "recipe": RECIPE, **model}, width=6)
    if result.has_model and result.libraries:
        call = figures.load_call(str(figures.shortened(result.directory / MODEL)), result.libraries)
        console.print(Text.assemble(("load it ", "dim"), figures.one_line(call)), overflow="fold")
    elif result.unsaved:
        console.print(Text.assemble(("model   ", "dim"), figures.one_line(result.unsaved)), overflow="fold")


def names_of(steps: Sequence[Step]) -> str:
    """Return the techniques of a recipe in words, without their options."""
    return figures.one_line(" + ".join(step.technique for step in steps)) or "original"


def _options(steps: Sequence[Step]) -> str:
    """Return all options briefly in one bracket, as "(jit, no freezing)". They distinguish trials of a technique."""
    words = [_brief(key, value) for step in steps for key, value in step.options.items()]
    return figures.one_line(f"({', '.join(words)})") if words else ""


def _brief(key: str, value: bool | int | float | str) -> str:
    name = key.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return value if isinstance(value, str) else f"{name} {value}"
