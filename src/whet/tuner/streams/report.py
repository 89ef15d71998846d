"""Write report.html of a stream: one page that opens offline, in the style of the report of a model's calls."""

import shlex
from pathlib import Path

from whet.tuner import figures
from whet.tuner.figures import DASH
from whet.tuner.key_figures import Tile, speed_tile
from whet.tuner.report import environment, shared
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.time_account import time_sentence

QUALITY = {
    "ssim": "SSIM",
    "psnr_db": "PSNR (dB)",
    "sharpness": "sharpness",
    "flicker": "flicker",
    "warp_error": "warp error",
    "accuracy": "recognised",
}
"""The names of a stream's figures of quality."""


def render(result: Result, toml: str) -> str:
    page = environment()
    page.loader.searchpath.append(str(Path(__file__).parent))  # type: ignore[union-attr]
    page.filters["figure"] = quality_figure
    return page.get_template("stream_report.html.j2").render(
        **shared(result, toml),
        tiles=_tiles(result),
        quality=QUALITY,
        time=time_sentence(result.time_s),
        stream_call=f"whet stream {shlex.quote(result.out)}",
    )


def quality_figure(point: MeasuredVariant, name: str) -> str:
    found = None if point.stream is None else getattr(point.stream, name)
    if found is None:
        return DASH
    return figures.percent(found) if name == "accuracy" else f"{found:.{2 if name == 'psnr_db' else 4}f}"


def _tiles(result: Result) -> list[Tile]:
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
