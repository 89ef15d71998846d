"""Show the phases of a training loop as a table: `whet profile --step`."""

import json
import textwrap

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.cli.busy import INCONCLUSIVE, patience_of
from whet.profiling.bounds import Bound
from whet.profiling.step.report import PhaseTime, StepReport
from whet.tuner.target_profile.training import NUM_STEPS, profile_step
from whet.ui.figures import count, digits, percent
from whet.ui.terminal_tables import plain_table

_WIDTH = 100  # of a sentence


def run_step(target: str, *, limit_s: float, on_busy: str, busy_wait: str, as_json: bool) -> None:
    """Show where the steps of a training loop go; what was seen until then, where it ends early or on Ctrl-C.

    Raises a WhetError where the target cannot be had, or where it raised.
    """
    console = Console(stderr=as_json, highlight=False)
    patience = patience_of(on_busy, busy_wait, console)
    found: list[StepReport] = []
    try:
        with console.status(f"watching {target}: {NUM_STEPS} steps, for {limit_s:.0f} s at most"):
            found = [profile_step(target, limit_s=limit_s, patience=patience, ended_early=found.append)]
    finally:
        for report in found:
            if report.busy:
                console.print(Text(f"The machine was busy: {report.busy}. Times may be too long.", "yellow"))
            show_steps(console, report)
            if as_json:
                print(json.dumps({"target": target, **report.as_json()}))
    if found[0].busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


def show_steps(console: Console, report: StepReport) -> None:
    """Show the verdict with its evidence, the phases, and the lines that wait, within 80 columns."""
    console.print()
    if report.is_partial:
        console.print(Text.assemble(("PARTIAL  ", "bold red"), report.ended_by))
    style = "bold green" if report.verdict is Bound.COMPUTE else "bold yellow"
    console.print(Text(report.verdict.upper(), style))
    for sentence in (*report.evidence, report.advice):
        for line in textwrap.wrap(f"{sentence[:1].upper()}{sentence[1:]}.", min(console.width, _WIDTH) - 2):
            console.print(Text(f"  {line}"))
    if report.phases:
        console.print()
        console.print(_phases(report))
        console.print(Text(_distribution(report), "dim"))
    if report.sites:
        console.print()
        console.print(_sites(report))
    for note in report.notes():
        console.print(Text(f"note: {note}", "dim"))


def _phases(report: StepReport) -> Table:
    on_gpu = any(phase.gpu_ms is not None for phase in report.phases)
    table = plain_table()
    table.add_column("phase", no_wrap=True)
    for name in ("ms a step", "share", *(("on the GPU", "share") if on_gpu else ()), "calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", ratio=1, overflow="fold")
    for phase in report.phases:
        table.add_row(*_cells(phase, on_gpu))
    if report.step_ms is not None:
        gpu = ["", ""] if on_gpu else []
        table.add_row("step", digits(report.step_ms), "100%", *gpu, "", "", style="bold")
    return table


def _cells(phase: PhaseTime, on_gpu: bool) -> list[Text]:
    if phase.ms is None or phase.share is None:
        empty = [Text("–", "dim")] * (4 if on_gpu else 2)
        return [Text(phase.name, "dim"), *empty, Text(), Text(phase.absent, "dim")]
    cells = [phase.name, digits(phase.ms), percent(phase.share, decimals=1)]
    share = phase.share
    if on_gpu and phase.gpu_ms is not None and phase.gpu_share is not None:
        share = phase.gpu_share
        cells += [digits(phase.gpu_ms), percent(share, decimals=1)]
    cells.append(count(phase.calls) if phase.calls else "")
    return [*map(Text, cells), Text("█" * round(20 * share), "cyan")]


def _distribution(report: StepReport) -> str:
    assert report.step_ms is not None and report.p50_ms is not None and report.p90_ms is not None
    p99 = "" if report.p99_ms is None else f", P99 {digits(report.p99_ms)}"
    return (
        f"one step: median {digits(report.p50_ms)}, P90 {digits(report.p90_ms)}{p99} ms; "
        f"{count(1e3 / report.step_ms)} steps/s; {report.num_counted} steps"
    )


def _sites(report: StepReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("where it waits", overflow="fold")
    table.add_column("call", no_wrap=True)
    table.add_column("ms a step", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    for site in report.sites:
        table.add_row(Text(site.line), Text(site.call), digits(site.ms), count(site.calls))
    return table
