"""Tune a stream and show what was found: whet tune on a target of whet stream."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.cli.busy import show_waiting
from whet.cli.for_streams import ForStreams
from whet.cli.tuning_progress import TuningProgress
from whet.figures import DASH, digits, duration, percent
from whet.stream_tuner.clips import clips_of_signs
from whet.stream_tuner.goal import StreamListener
from whet.stream_tuner.quality import Figures
from whet.stream_tuner.result import Point, StreamTuning
from whet.stream_tuner.search import Trial
from whet.stream_tuner.tuning import tune_stream
from whet.streamer.sinks import open_sink
from whet.streamer.stream import StreamOptions
from whet.tuner.listener import Listener

_STYLES = {"gain": "green", "no-gain": "yellow", "inconclusive": "yellow", "failed": "red"}


class StreamProgress(StreamListener):
    """Show progress on the terminal: a line for every decision, and each model's search as `whet tune` shows it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._inner: TuningProgress | None = None
        self._rounds_shown = 0

    def says(self, sentence: str) -> None:
        """Print a sentence."""
        self.end_search()
        self._console.print(sentence, markup=False, highlight=False)

    def tried(self, trial: Trial) -> None:
        """Print a trial in one line."""
        self._console.print(f"  {trial.setting.label}: {trial.sentence}", style="dim", markup=False, highlight=False)

    def tuning(self, name: str, budget_s: float) -> Listener:
        """Say which model is tuned, and show its search."""
        self.end_search()
        self._inner = TuningProgress(self._console, f"the stream's {name}", budget_s)
        return self._inner

    def waiting(self, text: str) -> None:
        """Say that the machine is busy."""
        show_waiting(self._console, text)

    def measured(self, rounds_done: int, rounds: int) -> None:
        """Print how far the final comparison is."""
        if rounds_done > self._rounds_shown:
            self._rounds_shown = rounds_done
            self._console.print(f"final comparison: {rounds_done} of {rounds} rounds", style="dim", highlight=False)

    def end_search(self) -> None:
        """End the bar of a model's search."""
        if self._inner is not None:
            self._inner.__exit__(None, None, None)
            self._inner = None


def tune_target(
    console: Console,
    target: str,
    given: ForStreams,
    options: Mapping[str, Any],
    busy: Mapping[str, Any],
    *,
    out: Path,
    as_json: bool,
) -> str:
    """Tune a stream, show how it goes and what was found, and return the verdict.

    Args:
        console: Where messages go.
        target: The stream.
        given: The options for streams.
        options: The options of `whet.tune`, by name.
        busy: What to do on a busy machine, by name.
        out: The directory for the result.
        as_json: Whether the result is also printed as one JSON object.

    Raises:
        OptionError: An option does not go with a stream.
    """
    given.check_options(target, options)
    if given.sink != "null":
        open_sink(f"whet-stream{given.sink}", overwrite=True).close()  # without a frame there is no file
    listener = StreamProgress(console)
    try:
        result = tune_stream(
            target,
            given.source,
            StreamOptions(steps=given.steps, sampler=given.sampler, prompt=given.prompt),
            given.goal(options, busy),
            clips=None if given.data is None else clips_of_signs(given.data),
            sink_suffix="" if given.sink == "null" else given.sink,
            out=out,
            listener=listener,
        )
    finally:
        listener.end_search()
    show(console if as_json else Console(), result)
    if as_json:
        print(result.to_json(indent=None), end="", flush=True)
    return result.verdict


def show(console: Console, result: StreamTuning) -> None:
    """Show the verdict, then the original and the best side by side."""
    console.print()
    console.print(Text.assemble(("whet tune  ", "bold"), result.target, ("  on ", "dim"), result.source))
    console.print(Text(result.sentence, _STYLES[result.verdict]))
    console.print()
    found = result.best if result.verdict == "gain" else next((point for point, _ in result.rejected), result.best)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("")
    table.add_column("original", justify="right")
    table.add_column("found", justify="right")
    for name, cell in _ROWS.items():
        cells = cell(result.original), cell(found)
        if any(text != DASH for text in cells):
            table.add_row(name, *cells)
    console.print(table)
    console.print()
    truth = "the true frames" if result.has_truth else "the original's answers, as nobody knows the true ones"
    console.print(Text(f"quality beside {truth}, on frames that the search has not seen"))
    for name, recipe in found.models.items():
        console.print(Text(f"{name}: {recipe}"))
    console.print(Text(f"the stream that is kept: whet stream {result.out}"))


def _figure(name: str, form: Callable[[float | None], str]) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        figures: Figures | None = point.figures
        return DASH if figures is None else form(getattr(figures, name))

    return cell


_ROWS: Mapping[str, Callable[[Point], str]] = {
    "frames/s": lambda point: digits(point.fps),
    "a frame": lambda point: duration(point.s_per_frame),
    "P99 of a frame": lambda point: duration(point.p99_s),
    "PSNR (dB)": _figure("psnr_db", lambda value: f"{value:.2f}"),
    "SSIM": _figure("ssim", lambda value: f"{value:.3f}"),
    "sharpness": _figure("sharpness", lambda value: f"{value:.2f}"),
    "flicker": _figure("flicker", lambda value: f"{value:.4f}"),
    "warp error": _figure("warp_error", lambda value: f"{value:.4f}"),
    "recognised": _figure("accuracy", lambda value: DASH if value is None else percent(value)),
}
