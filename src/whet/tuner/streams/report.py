"""Write report.html of a stream: one page that opens offline, in the style of the report of a model's calls."""

import shlex
from pathlib import Path

from markupsafe import Markup

from whet.files import write_whole
from whet.tuner import figures
from whet.tuner.figures import DASH
from whet.tuner.headline import headline
from whet.tuner.key_figures import Tile, speed_tile
from whet.tuner.report import (
    TONES,
    VERDICTS,
    counts,
    day,
    environment,
    go_on_command,
    in_order,
    machine_rows,
    recipe_text,
    spread,
)
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.time_account import time_sentence
from whet.tuner.verdict import noise_in_words
from whet.ui import page_style

_HERE = Path(__file__).parent
_STYLE = _HERE.parent / "report.css"
QUALITY = {
    "ssim": "SSIM",
    "psnr_db": "PSNR (dB)",
    "sharpness": "sharpness",
    "flicker": "flicker",
    "warp_error": "warp error",
    "accuracy": "recognised",
}
"""The names of a stream's figures of quality."""


def write_stream_report(result: Result, path: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    write_whole(path, render(result, recipe_text(result, path.parent)))


def render(result: Result, toml: str) -> str:
    """Return the page as text. `toml` is the recipe as it lies on disk."""
    trials, points = in_order(result.trials), figures.final_points(result)
    page = environment()
    page.loader.searchpath.append(str(_HERE))  # type: ignore[union-attr]
    page.filters["figure"] = quality_figure
    return page.get_template("stream_report.html.j2").render(
        r=result,
        css=Markup(page_style.style(_STYLE.read_text(encoding="utf-8"))),
        verdict_word=VERDICTS[result.verdict],
        tone=TONES[result.verdict],
        said=headline(result),
        go_on=go_on_command(result),
        day=day(result.started_at),
        noise=noise_in_words(result.baseline),
        tiles=_tiles(result),
        points=points,
        quality=QUALITY,
        trials=trials,
        trial_counts=counts(trials),
        time=time_sentence(result.time_s),
        machine=machine_rows(result),
        finalist_steps={point.steps for point in result.finalists},
        stream_call=f"whet stream {shlex.quote(result.out)}",
        toml=toml,
        spread=spread(points),
    )


def quality_figure(point: MeasuredVariant, name: str) -> str:
    """Return a figure of a point's quality, as people read it; a dash where it is not known."""
    found = None if point.stream is None else getattr(point.stream, name)
    if found is None:
        return DASH
    return figures.percent(found) if name == "accuracy" else f"{found:.{2 if name == 'psnr_db' else 4}f}"


def _tiles(result: Result) -> list[Tile]:
    """Return the key figures: speed, frames a second, the time of a frame, and the quality."""
    best, baseline = result.best, result.baseline
    rates = f"{figures.digits(baseline.throughput_per_s)} → {figures.digits(best.throughput_per_s)}"
    kept = "the original stays" if not best.steps else "from one answer to the next"
    p99 = "" if best.p99_ms is None else f"P99 {figures.duration(best.p99_ms)}, {best.budget}; "
    similarity = f"{quality_figure(baseline, 'ssim')} → {quality_figure(best, 'ssim')}"
    return [
        speed_tile(result),
        Tile("Frames a second", rates if best.steps else figures.digits(baseline.throughput_per_s), kept),
        Tile("A frame", figures.duration(best.latency_ms), f"{p99}{kept}", result.within_s is not None),
        Tile("Structural similarity", similarity if best.steps else quality_figure(baseline, "ssim"),
             "on frames that the search has not seen"),
    ]  # fmt: skip
