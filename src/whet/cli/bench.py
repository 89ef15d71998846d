"""Measure a target at many sizes, or compare it with a baseline or a git reference: whet bench."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.busy import BusyWaitOption, OnBusyOption, busy_wait_s, patience_of
from whet.comparison.tolerance import BASELINE_PROCESSES, TOLERANCE
from whet.errors import OptionError
from whet.files import check_file
from whet.measure.fast_import import large_imports
from whet.measure.on_busy import OnBusy
from whet.ui.units import fraction, num_bytes, seconds
from whet.workloads.target_name import check_name


def _check_names(targets: Sequence[str]) -> None:
    for target in targets:
        check_name(target)


NAMES = {"targets": _check_names}
"""What checks a parameter as it was typed; see typed.py."""

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
    OnBusy.checked(on_busy)
    busy_wait_s(busy_wait)
    sizes = {"batch": _sizes(batch, "batch"), "seq": _sizes(seq, "seq")}
    allowed = fraction("--tolerance", tolerance)
    files = (save, csv, plot)
    _check_purpose(compare, against, files, {"--junit": junit is not None, "--github": github})
    for path in (*files, junit):
        check_file(path)
    _check_numbers(processes, allowed)
    if plot is not None:
        from whet.comparison.bench.plot import check_plot  # pydantic, which help does without

        check_plot(plot, sizes)
    budget_s = seconds("--budget", budget or ("1s" if against is None else "0.5s"))
    limit_s = seconds("--limit", limit)
    memory_limit_bytes = None if memory_limit is None else num_bytes("--memory-limit", memory_limit)
    from whet.comparison.bench.report import read_sweep  # pydantic, which help does without

    baseline = None if compare is None else read_sweep(compare)
    with large_imports():
        from rich.console import Console

        from whet.cli import bench_run
    console = Console(stderr=as_json or github)
    patience = patience_of(on_busy, busy_wait, console)
    if against is not None:
        gate = bench_run.pairs(console, targets, against, allowed, budget_s, limit_s, sizes, patience)
        bench_run.conclude(console, gate, junit, github=github, as_json=as_json)
    if baseline is not None:
        bench_run.check_baseline(baseline)
    options: dict[str, Any] = {
        **sizes,
        "processes": processes or (1 if save is None and compare is None else BASELINE_PROCESSES),
        "budget_s": budget_s,
        "with_memory": memory,
        "with_energy": energy,
        "time_limit_s": limit_s,
        "memory_limit_bytes": memory_limit_bytes,
        "patience": patience,
    }
    sweep = bench_run.measured(console, targets, options)
    bench_run.write(sweep, *files)
    if baseline is not None:
        gate = bench_run.against_baseline(baseline, sweep, tolerance=allowed)
        bench_run.conclude(console, gate, junit, github=github, as_json=as_json)
    bench_run.leave(sweep, patience, as_json=as_json)


def _check_purpose(
    compare: Path | None, against: str | None, files: Sequence[Path | None], for_verdicts: Mapping[str, bool]
) -> None:
    """Check that the options fit what is done: a sweep, or a comparison, which gives verdicts.

    `files` are what is to be written of a sweep; `for_verdicts` says which options on verdicts were given.
    """
    if compare is not None and against is not None:
        raise OptionError("--compare holds against a file, --against against a git reference: give one of them")
    if against is not None and any(path is not None for path in files):
        raise OptionError(
            "--against measures pairs for a verdict; --save, --csv and --plot belong to a sweep: "
            "leave them out, or leave out --against"
        )
    for name, is_given in for_verdicts.items():
        if is_given and compare is None and against is None:
            raise OptionError(
                f"{name} writes verdicts, and there are none without --compare or --against; give one of them"
            )


def _check_numbers(processes: int | None, tolerance: float) -> None:
    if processes is not None and processes < 1:
        raise OptionError(f"--processes {processes}: each point is measured in at least one process; give 1 or more")
    if not 0 < tolerance < 1:
        raise OptionError(f"--tolerance must lie between 0 and 1: 0.02 or 2% allows two percent; got {tolerance:g}")


def _sizes(text: str, name: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise OptionError(f"--{name} takes whole numbers separated by commas, as 1,8,32; got {text!r}") from error
