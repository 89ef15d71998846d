"""Show on the terminal what bounds a model: `whet profile TARGET`."""

import json
import time
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from whet.cli.busy import INCONCLUSIVE, patience_of
from whet.files import names_in
from whet.profiling.model.report import Report
from whet.profiling.model.report import as_json as report_json
from whet.profiling.model.show import show_report
from whet.tuner.target_profile.model import profile_target


def run_target(
    target: str, *, out: Path | None, depth: int, rows: int, limit_s: float, on_busy: str, busy_wait: str, as_json: bool
) -> None:
    """Profile a target and show what was found; what was found until then, where it ends early or on Ctrl-C.

    Raises a WhetError where the target cannot be had, or ended before its time.
    """
    console = Console(stderr=as_json, highlight=False)
    patience = patience_of(on_busy, busy_wait, console)
    found: list[Report] = []
    try:
        with Live(_Progress(target), console=console, transient=True, refresh_per_second=4):
            whole = profile_target(
                target, out=out, depth=depth, limit_s=limit_s, patience=patience, ended_early=found.append
            )
        found = [whole]
    finally:
        for report in found:
            show_report(console, report, rows=rows)
            if out is not None and (names := names_in(out)):
                console.print(f"\nwritten  {', '.join(str(out / name) for name in sorted(names))}", markup=False)
            if as_json:
                place = None if out is None else str(out)
                print(json.dumps({"target": target, **report_json(report), "out": place}))
    if found[0].busy and not patience.goes_on:
        raise typer.Exit(INCONCLUSIVE)


class _Progress:
    """Show a line with the time so far. How long an unknown model will take cannot be predicted."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"profiling {self._target}, {time.monotonic() - self._began:.0f} s (mostly 5 to 20)", "dim")
