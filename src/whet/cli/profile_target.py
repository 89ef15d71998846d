"""`whet profile TARGET`: in a child process, so that a crash, a hang or a lack of memory is one message."""

import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from whet.cli.busy import INCONCLUSIVE, shown
from whet.cli.profile_child import PARTIAL, look
from whet.cli.profiled_process import error_of
from whet.cli.units import seconds
from whet.errors import ModelError, OutputError, WhetError
from whet.files import names_in, replace_directory, writable_parent, write_whole
from whet.machine import describe
from whet.measure.isolate import QUIET, run_isolated
from whet.measure.quiet import Patience
from whet.profiler.chrome import FILE as TRACE
from whet.profiler.report import Report, from_json
from whet.profiler.report import as_json as report_json
from whet.profiler.session import PROFILE
from whet.profiler.show import show_report


def run_target(
    target: str, *, out: Path | None, depth: int, rows: int, limit: str, as_json: bool, patience: Patience
) -> None:
    """Profile a target and show what was found; with `out`, write it there, whole or not at all.

    Raises a WhetError where the target cannot be had, or ended before its time; what was found until then is shown.
    """
    limit_s = seconds(limit)
    console = Console(stderr=as_json, highlight=False)
    if out is not None:
        _check_out(out)
    with tempfile.TemporaryDirectory(prefix="whet-profile-") as scratch:
        folder = Path(scratch)
        with shown(console, patience):
            report, failure = patience.measure(
                lambda: _measured(console, target, folder, depth, limit_s),
                lambda found: found[0].busy if found[0] is not None else "",
            )
        if report is not None and report.busy and not patience.goes_on:
            report = replace(report, verdict=None)  # a busy machine gives none
        if report is not None:
            show_report(console, report, rows=rows)
            if out is not None:
                _write(report, folder / TRACE, out)
                console.print(f"\nwritten  {', '.join(str(path) for path in sorted(out.iterdir()))}", markup=False)
            if as_json:
                place = None if out is None else str(out)
                print(json.dumps({"target": target, **report_json(report), "out": place}))
        if failure is not None:
            raise failure
        if report is not None and report.partial:
            raise ModelError(f"{report.partial}; what is shown was measured until then")
        if report is not None and report.busy and not patience.goes_on:
            raise typer.Exit(INCONCLUSIVE)


def _measured(
    console: Console, target: str, folder: Path, depth: int, limit_s: float
) -> tuple[Report | None, WhetError | None]:
    """What the child found, whole or in part, and why it ended early. On Ctrl-C what is known so far is shown."""
    arguments = {"target": target, "directory": str(folder.absolute()), "depth": depth}
    try:
        with Live(_Progress(target), console=console, transient=True, refresh_per_second=4):
            outcome = run_isolated(
                look,
                arguments,
                folder,
                time_limit_s=limit_s,
                memory_limit_bytes=describe().most_bytes,
                environment=QUIET,
            )
    except KeyboardInterrupt:
        partial = _partial(folder, "interrupted")
        if partial is not None:
            show_report(console, partial)
        raise
    if outcome.value is not None:
        return from_json(outcome.value), None
    assert outcome.failure is not None
    return _partial(folder, outcome.failure.message), error_of(outcome.failure, target, "profiled")


def _partial(folder: Path, why: str) -> Report | None:
    """What the child had noted before it ended."""
    try:
        data = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return from_json({**data, "partial": why})


def _check_out(out: Path) -> None:
    if names_in(out):
        raise OutputError(f"{out} exists already; choose another --out")
    writable_parent(out.absolute())


def _write(report: Report, trace: Path, out: Path) -> None:
    """The directory appears with all its files, or not at all."""
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error.strerror or error}") from error
    try:
        partial.chmod(0o755)  # a temporary directory is for its owner alone
        write_whole(partial / PROFILE, json.dumps(report_json(report), indent=1) + "\n")
        if trace.is_file():
            write_whole(partial / TRACE, trace.read_bytes())
        replace_directory(partial, out.absolute())
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Progress:
    """A line that says how long it has been going on; how long it will, nobody knows of an unknown model."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"profiling {self._target}, {time.monotonic() - self._began:.0f} s (mostly 5 to 20)", "dim")
