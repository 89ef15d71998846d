"""Show on a terminal what `whet tune` found out about a training run."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.cli.tables import VERDICTS, names_of, show_files, show_verdict
from whet.core.recipe_file import FILE as RECIPE
from whet.techniques.costs.memory import StepMemory
from whet.tuner import figures
from whet.tuner.result import FILE, MeasuredVariant, Result
from whet.tuner.time_account import time_sentence
from whet.tuner.training.shared_words import PLAN, plan_sentences
from whet.tuner.training.words import batch_sentences, proof_of
from whet.ui.figures import num_bytes
from whet.ui.terminal_tables import plain_table


def memory_line(memory: StepMemory) -> str:
    """Return what the memory of a step is made of, in one line."""
    told = ", ".join(f"{num_bytes(value)} {name}" for name, value in memory.parts.items())
    return f"It takes {num_bytes(memory.peak_bytes)}: {told}."


def show_result(console: Console, result: Result) -> None:
    """Show the verdict, the original, torch.compile alone and the finalists, and the recipe, within 80 columns."""
    show_verdict(console, result, _table)
    if not result.is_disturbed:
        _show_rest(console, result)
    if result.out:
        plan = {} if result.num_processes == 1 else {"plan": PLAN}
        files = {"report": "report.html", "recipe": RECIPE, **plan, "result": FILE}
        written = {name: file for name, file in files.items() if (result.directory / file).exists()}
        show_files(console, result, written, width=6)  # results of earlier versions may have no page


def _table(result: Result) -> Table:
    table = plain_table()
    table.add_column("training", ratio=1, min_width=18, overflow="fold")
    table.add_column("step", justify="right")
    table.add_column(f"{result.unit}/s", justify="right")
    table.add_column(Text("speedup\n95%"), justify="right")
    table.add_column("faster?")
    table.add_column("memory", justify="right")
    for point in [result.baseline, *_others(result)]:
        table.add_row(*_cells(result, point), style="bold" if point.label == result.best.label else "")
    return table


def _show_rest(console: Console, result: Result) -> None:
    """Print what proves that the best recipe trains as the original does, and what it needs."""
    if result.best.steps and (proof := proof_of(result.best)):
        console.print(Text(figures.one_line(proof), "dim"))
    spent = time_sentence(result.time_s, result.compile_s)
    for line in [
        *plan_sentences(result),
        *_lines(result),
        *([spent] if spent else []),
        *map(figures.one_line, batch_sentences(result)),
    ]:
        console.print(Text(line, "dim"))


def _lines(result: Result) -> list[str]:
    """Return what is known of the best recipe beside its times: memory, set-up, and energy where it was counted."""
    best, evidence = result.best, result.best.training
    if evidence is None:
        return []
    lines = [memory_line(evidence.memory)] if evidence.memory is not None and best.steps else []
    if best.steps and evidence.set_up_s is not None:
        lines.append(f"Set-up, once: {figures.duration(evidence.set_up_s * 1e3)}, compilation included.")
    if evidence.joules_per_step is not None:
        lines.append(f"A step takes {figures.digits(evidence.joules_per_step)} J, of the whole processor.")
    return lines


def _others(result: Result) -> list[MeasuredVariant]:
    measured = {point.label for point in result.finalists}
    alone = result.compile_only
    return [*([alone] if alone is not None and alone.label not in measured else []), *result.finalists]


def _cells(result: Result, point: MeasuredVariant) -> list[Text]:
    name = Text(names_of(point.steps))
    if point.label == result.best.label:
        name.append("  kept" if not point.steps else "  winner", "green")
    speedup = Text(figures.ratio(point.speedup) if point.steps else figures.DASH)
    if point.steps and point.verdict != "screened":
        speedup.append(f"\n{figures.interval(point.speedup_ci95)}", "dim")
    word, style = VERDICTS.get(point.verdict, (figures.DASH, ""))
    return [
        name,
        Text(figures.duration(point.latency_ms, like=result.baseline.latency_ms)),
        Text(figures.rate(point.throughput_per_s)),
        speedup,
        Text(word, style),
        Text(num_bytes(point.peak_bytes) if point.peak_bytes else figures.DASH),
    ]
