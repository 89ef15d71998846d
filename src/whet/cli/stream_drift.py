"""Test whether a stream drifts over hundreds of frames: whet stream --drift."""

import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from whet.cli.counted_progress import CountedProgress
from whet.files import usable_directory, write_whole
from whet.streamer.drift import page
from whet.streamer.drift.report import DriftReport
from whet.streamer.drift.run import drift_test
from whet.streamer.sources import open_source
from whet.streamer.stream import StreamOptions

_STYLES = {"no drift": "green", "drift": "red", "inconclusive": "yellow"}


def test_drift(
    console: Console,
    target: str,
    source: str,
    num_frames: int,
    options: StreamOptions,
    *,
    rate: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the test, show the verdict, write drift.html and drift.json, and return the exit code.

    `out` is the directory of the report, None for none; `rate` is the frames a second of a folder or a synthetic clip.
    """
    directory = None if out is None else usable_directory(out)
    with CountedProgress(console) as progress:
        bar = progress.begin("frames", num_frames)
        report = drift_test(
            target,
            lambda size: open_source(source, size=size, fit=options.fit, rate=rate),
            num_frames,
            options,
            on_answer=lambda: progress.advance(bar),
        )
    _show(console if as_json else Console(), report)
    if as_json:
        print(json.dumps(report.to_json()), flush=True)
    if directory is not None:
        write_whole(directory / "drift.json", json.dumps(report.to_json(), indent=1) + "\n")
        page.save(report, directory / "drift.html")
        console.print(f"written to {directory}")
    return report.exit_code


def _show(console: Console, report: DriftReport) -> None:
    console.print()
    console.print(Text.assemble(("whet stream --drift  ", "bold"), report.subject, ("  over ", "dim"), report.source))
    for result in report.verdict.results:
        if result.is_drift:
            console.print(Text(f"{result.measure.title}: drifts from frame {result.from_frame} on"))
    console.print(Text(report.sentence, _STYLES[report.verdict.word]))
