"""Measure what whet bench is asked for, show it, and leave with the exit code that says what was found."""

import json
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

from whet.cli.bench_tables import show_gate, show_growth, show_notes, show_sweep, show_verdict
from whet.cli.busy import INCONCLUSIVE
from whet.comparison.bench.against import against_baseline, check_baseline, compare_with
from whet.comparison.bench.formats import github_annotations, junit_xml, sweep_csv
from whet.comparison.bench.plot import plot_sweep
from whet.comparison.bench.report import Gate, Sweep
from whet.comparison.bench.sweep import bench
from whet.comparison.claim import Verdict
from whet.files import write_whole
from whet.measure.quiet import QuietWait

__all__ = ["against_baseline", "check_baseline", "conclude", "leave", "measured", "pairs", "write"]

_ENDED_BADLY = 2
_EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: INCONCLUSIVE}


def pairs(
    console: Console,
    targets: list[str],
    against: str,
    tolerance: float,
    budget_s: float,
    limit_s: float,
    sizes: dict[str, list[int]],
    patience: QuietWait,
) -> Gate:
    """Measure pairs until the verdicts are clear."""
    with console.status("measuring pairs") as status:
        return compare_with(
            targets,
            against=against,
            tolerance=tolerance,
            budget_s=budget_s,
            time_limit_s=limit_s,
            report=lambda verdict: status.update(show_verdict(verdict)),
            batch=sizes["batch"],
            seq=sizes["seq"],
            patience=patience,
        )


def measured(console: Console, targets: list[str], options: dict[str, Any]) -> Sweep:
    """Measure every point with the options of `whet.bench`, and show the figures."""
    with console.status("measuring") as status:
        sweep = bench(targets, report=lambda point: status.update(f"measured {point.label}"), **options)
    given = [f"--{name} {','.join(map(str, options[name]))}" for name in ("batch", "seq") if options[name]]
    sweep.command = " ".join(["whet bench", *targets, *given])
    show_sweep(console, sweep, with_memory=options["with_memory"], with_energy=options["with_energy"])
    show_growth(console, sweep)
    show_notes(console, sweep, with_energy=options["with_energy"])
    return sweep


def conclude(console: Console, gate: Gate, junit: Path | None, *, github: bool, as_json: bool) -> NoReturn:
    """Show the verdicts and leave with the exit code that says the worst of them."""
    show_gate(console, gate)
    if junit is not None:
        write_whole(junit, junit_xml(gate))
    if github:
        print(github_annotations(gate))
    if as_json:
        print(json.dumps(gate.model_dump(mode="json")))
    if gate.outcome == "inconclusive" and any(verdict.reason for verdict in gate.verdicts):
        raise typer.Exit(_ENDED_BADLY)
    raise typer.Exit(_EXIT_CODES[Verdict(gate.outcome)])


def leave(sweep: Sweep, patience: QuietWait, *, as_json: bool) -> None:
    """Leave with an exit code of its own where every point failed, or where the machine was too busy for one."""
    if as_json:
        print(json.dumps(sweep.model_dump(mode="json", exclude={"points": {"__all__": {"samples_ms"}}})))
    if all(point.status == "failed" for point in sweep.points):
        raise typer.Exit(_ENDED_BADLY)
    if not patience.goes_on and any(point.busy for point in sweep.points):
        raise typer.Exit(INCONCLUSIVE)


def write(sweep: Sweep, save: Path | None, csv: Path | None, plot: Path | None) -> None:
    if save is not None:
        sweep.write(save)
    if csv is not None:
        write_whole(csv, sweep_csv(sweep))
    if plot is not None:
        plot_sweep(sweep, plot)
