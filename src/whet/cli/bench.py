"""Measure a target at many sizes, or compare it with a baseline or a git reference: whet bench."""

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from whet.benchmark.against import BASELINE_PROCESSES, against_baseline, compare_with, read_baseline
from whet.benchmark.formats import github_annotations, junit_xml, sweep_csv
from whet.benchmark.plot import plot_sweep
from whet.benchmark.report import Gate, Sweep
from whet.benchmark.sweep import bench as run_bench
from whet.cli.bench_checks import check_bench
from whet.cli.bench_tables import show_gate, show_growth, show_notes, show_sweep, show_verdict
from whet.cli.busy import INCONCLUSIVE, BusyWaitOption, OnBusyOption, patience_of
from whet.cli.units import fraction, num_bytes, seconds
from whet.comparison.claim import Verdict
from whet.comparison.sequential import TOLERANCE
from whet.errors import OptionError
from whet.files import write_whole
from whet.measure.quiet import Patience

_ENDED_BADLY = 2
_EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: INCONCLUSIVE}

_Targets = Annotated[
    list[str],
    typer.Argument(metavar="TARGET...", help="a built-in name, hf:DIR, FILE.py:FUNCTION or package.module:FUNCTION"),
]
_Batch = Annotated[str, typer.Option(metavar="N,N", help="batch sizes to measure, as 1,8,32")]
_Seq = Annotated[str, typer.Option(metavar="N,N", help="sequence lengths to measure, as 128,512")]
_Save = Annotated[Path | None, typer.Option(help="write the sweep as JSON, as a baseline for --compare")]
_Compare = Annotated[Path | None, typer.Option(help="compare with a baseline that --save wrote on this machine")]
_Against = Annotated[
    str | None, typer.Option(metavar="REF", help="compare with a git reference, in pairs of processes")
]
_Tolerance = Annotated[str, typer.Option(metavar="NUMBER", help="the slowdown that passes, as 0.02 or 2%")]
_Processes = Annotated[
    int | None, typer.Option(help="processes for each point", show_default="1; 5 with --save or --compare")
]
_Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="seconds of timing in each process", show_default="1s; 0.5s with --against"),
]
_Limit = Annotated[str, typer.Option(metavar="TIME", help="the time limit of each process")]
_Memory = Annotated[bool, typer.Option("--memory", help="measure working memory and live tensors as well")]
_MemoryLimit = Annotated[str | None, typer.Option(metavar="SIZE", help="the memory limit of each process, as 8GB")]
_Energy = Annotated[bool, typer.Option("--energy", help="measure joules as well, where the machine has counters")]
_Csv = Annotated[Path | None, typer.Option(help="write the sweep as CSV")]
_Plot = Annotated[Path | None, typer.Option(help="plot the sweep into a .svg, .png or .pdf file")]
_Junit = Annotated[Path | None, typer.Option(help="write the verdicts as JUnit XML")]
_Github = Annotated[bool, typer.Option("--github", help="print the verdicts as GitHub annotations")]
_AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


def bench(
    targets: _Targets,
    batch: _Batch = "",
    seq: _Seq = "",
    save: _Save = None,
    compare: _Compare = None,
    against: _Against = None,
    tolerance: _Tolerance = f"{TOLERANCE:g}",
    processes: _Processes = None,
    budget: _Budget = None,
    limit: _Limit = "5m",
    memory: _Memory = False,
    memory_limit: _MemoryLimit = None,
    energy: _Energy = False,
    csv: _Csv = None,
    plot: _Plot = None,
    junit: _Junit = None,
    on_busy: OnBusyOption = "wait",
    busy_wait: BusyWaitOption = "2m",
    github: _Github = False,
    as_json: _AsJson = False,
) -> None:
    """Measure a target at many sizes, or compare it with a baseline or a git reference.

    The exit code is 0 if nothing is slower, 1 if something is, 3 if the measurements are inconclusive, and 2 after an
    error.
    """
    console = Console(stderr=as_json or github)
    patience = patience_of(on_busy, busy_wait, console)
    sizes = {"batch": _sizes(batch, "batch"), "seq": _sizes(seq, "seq")}
    allowed = fraction("--tolerance", tolerance)
    files = (save, csv, plot)
    gates = {"--compare": compare is not None, "--against": against is not None}
    check_bench(
        sizes, files=files, plot=plot, junit=junit, processes=processes, tolerance=allowed, gates=gates, github=github
    )
    if against is not None:
        budget_s = seconds("--budget", budget or "0.5s")
        gate = _pairs(console, targets, against, allowed, budget_s, seconds("--limit", limit), sizes, patience)
        _conclude(console, gate, junit, github=github, as_json=as_json)
    baseline = None if compare is None else read_baseline(compare)
    options: dict[str, Any] = {
        **sizes,
        "processes": processes or (1 if save is None and compare is None else BASELINE_PROCESSES),
        "budget_s": seconds("--budget", budget or "1s"),
        "with_memory": memory,
        "with_energy": energy,
        "time_limit_s": seconds("--limit", limit),
        "memory_limit_bytes": None if memory_limit is None else num_bytes("--memory-limit", memory_limit),
        "patience": patience,
    }
    sweep = _sweep(console, targets, options)
    _write(sweep, *files)
    if baseline is not None:
        gate = against_baseline(baseline, sweep, tolerance=allowed)
        _conclude(console, gate, junit, github=github, as_json=as_json)
    _leave(sweep, patience, as_json=as_json)


def _pairs(
    console: Console,
    targets: list[str],
    against: str,
    tolerance: float,
    budget_s: float,
    limit_s: float,
    sizes: dict[str, list[int]],
    patience: Patience,
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


def _sweep(console: Console, targets: list[str], options: dict[str, Any]) -> Sweep:
    """Measure every point with the options of `whet.bench`, and show the figures."""
    with console.status("measuring") as status:
        sweep = run_bench(targets, report=lambda point: status.update(f"measured {point.label}"), **options)
    given = [f"--{name} {','.join(map(str, options[name]))}" for name in ("batch", "seq") if options[name]]
    sweep.command = " ".join(["whet bench", *targets, *given])
    show_sweep(console, sweep, with_memory=options["with_memory"], with_energy=options["with_energy"])
    show_growth(console, sweep)
    show_notes(console, sweep, with_energy=options["with_energy"])
    return sweep


def _conclude(console: Console, gate: Gate, junit: Path | None, *, github: bool, as_json: bool) -> NoReturn:
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


def _leave(sweep: Sweep, patience: Patience, *, as_json: bool) -> None:
    """Leave with an exit code of its own where every point failed, or where the machine was too busy for one."""
    if as_json:
        print(json.dumps(sweep.model_dump(mode="json", exclude={"points": {"__all__": {"samples_ms"}}})))
    if all(point.status == "failed" for point in sweep.points):
        raise typer.Exit(_ENDED_BADLY)
    if not patience.goes_on and any(point.busy for point in sweep.points):
        raise typer.Exit(INCONCLUSIVE)


def _write(sweep: Sweep, save: Path | None, csv: Path | None, plot: Path | None) -> None:
    if save is not None:
        sweep.write(save)
    if csv is not None:
        write_whole(csv, sweep_csv(sweep))
    if plot is not None:
        plot_sweep(sweep, plot)


def _sizes(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise OptionError(f"--{name} takes whole numbers separated by commas, as 1,8,32; got {text!r}") from error
