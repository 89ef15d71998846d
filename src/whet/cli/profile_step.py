"""`whet profile --step`: the phases of a training loop, run in a child process for so many steps."""

import gc
import json
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import typer
from pydantic import TypeAdapter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.bounds import Bound
from whet.cli.busy import INCONCLUSIVE, shown
from whet.cli.profiled_process import error_of
from whet.errors import ModelError, OptionError, WhetError
from whet.figures import count, digits, percent
from whet.files import write_whole
from whet.machine import describe
from whet.measure.isolate import run_isolated
from whet.measure.load import Observed
from whet.measure.quiet import Patience
from whet.step_profiler.report import PhaseTime, StepReport
from whet.step_profiler.run import run_training
from whet.workloads.training_target import training_function
from whet.workloads.user_code import what_and_where

NUM_STEPS = 100
_LIMIT_S = 300.0
_GRACE_S = 60.0  # to load, and to come to the end of a step
_PARTIAL = "partial.json"
_WIDTH = 100  # of a sentence
_REPORT = TypeAdapter(StepReport)


def run_step(
    target: str,
    *,
    num_steps: int = NUM_STEPS,
    limit_s: float = _LIMIT_S,
    as_json: bool = False,
    patience: Patience | None = None,
) -> None:
    """Run `num_steps` steps of a training loop after its warm-up, and show where their time went.

    limit_s: after so many seconds the loop is stopped at the end of a step, and what was seen is shown. On Ctrl-C too.

    Raises a WhetError where the target cannot be had, or where it raised; what was measured until then is shown first.
    """
    if num_steps < 1:
        raise OptionError("the number of steps must be 1 or more")
    console = Console(stderr=as_json, highlight=False)
    patience = patience or Patience()
    with tempfile.TemporaryDirectory(prefix="whet-step-") as scratch, shown(console, patience):
        try:
            report, failure, busy = patience.measure(
                lambda: _measured(console, target, num_steps, limit_s, Path(scratch)), lambda found: found[2]
            )
        except KeyboardInterrupt:
            partial = _partial(Path(scratch), "stopped by Ctrl-C")
            if partial is not None:
                show_steps(console, partial)
            raise
    if report is not None:
        if busy:
            console.print(Text(f"The machine was busy: {busy}. Times may be too long.", "yellow"))
        show_steps(console, report)
        if as_json:
            print(json.dumps({"target": target, **report.as_json()}))
        if failure is None and report.is_partial:
            failure = ModelError(f"{target} raised {report.ended_by}; the steps before it are shown, and are partial")
    if failure is not None:
        raise failure
    if busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


def look(target: str, num_steps: int, limit_s: float, directory: str) -> dict[str, Any]:
    """What the child process does: the report, as JSON. Every few seconds, what is known so far goes to a file."""
    notes = Path(directory) / _PARTIAL
    function = training_function(target)
    gc.collect()
    gc.freeze()  # what whet has loaded is not the loop's: its garbage collections need not go through it
    report = run_training(
        function,
        num_steps=num_steps,
        limit_s=limit_s,
        describe=what_and_where,
        note=lambda report: write_whole(notes, json.dumps(report.as_json())),
    )
    return report.as_json()


def show_steps(console: Console, report: StepReport) -> None:
    """The verdict with its evidence, the phases, the lines that wait; fits 80 columns."""
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


def _measured(
    console: Console, target: str, num_steps: int, limit_s: float, folder: Path
) -> tuple[StepReport | None, WhetError | None, str]:
    """What the child found, whole or in part, why it ended early, and what disturbed it on a busy machine."""
    with Observed() as seen, console.status(f"watching {target}: {num_steps} steps, for {limit_s:.0f} s at most"):
        outcome = run_isolated(
            look,
            {"target": target, "num_steps": num_steps, "limit_s": limit_s, "directory": str(folder)},
            folder,
            time_limit_s=limit_s + _GRACE_S,
            memory_limit_bytes=describe().most_bytes,
        )
    if outcome.value is not None:
        return _REPORT.validate_python(outcome.value), None, seen.load.cause
    assert outcome.failure is not None
    failure = error_of(outcome.failure, target, "watched")
    return _partial(folder, outcome.failure.message), failure, seen.load.cause


def _partial(folder: Path, why: str) -> StepReport | None:
    """What the child had noted before it ended."""
    try:
        data = json.loads((folder / _PARTIAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _REPORT.validate_python(data | {"is_partial": True, "ended_by": why})


def _phases(report: StepReport) -> Table:
    on_gpu = any(phase.gpu_ms is not None for phase in report.phases)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
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
