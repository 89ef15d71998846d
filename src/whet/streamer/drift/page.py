"""Draw the page of a drift test: verdict, measures over the frames, film strip. It opens offline and runs no script."""

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from whet import __version__
from whet.errors import MissingExtra
from whet.files import write_whole
from whet.streamer.drift.report import DriftReport
from whet.streamer.drift.trend import Array, parts
from whet.streamer.drift.verdict import MeasureResult
from whet.ui import page_style
from whet.ui.templates import templates

_HERE = Path(__file__).parent
_WIDTH, _HEIGHT = 560, 150  # of the plotting area, in the units of the drawing
_KINDS = {"no drift": "good", "drift": "bad", "inconclusive": "busy"}


@dataclass(frozen=True)
class Tick:
    """Hold a labelled place on an axis, in the units of the drawing."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Hold the drawing of one measure, in its own units: x to the right, y downwards.

    Attributes:
        raw: The path of the single values.
        smooth: The path of their running median.
        band: Top and height of what is no drift.
        onset: Where the drift begins; None without drift.
        ticks: The labels of the values.
    """

    result: MeasureResult
    raw: str
    smooth: str
    band: tuple[float, float]
    first_end: float
    last_start: float
    onset: float | None
    ticks: tuple[Tick, ...]


def render(report: DriftReport) -> str:
    """Render the page.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    page = templates(_HERE, {"value": _value, "change": _change})
    num_frames = report.series.num_frames
    thumbs = report.series.thumbnails
    return page.get_template("drift.html.j2").render(
        r=report,
        v=report.verdict,
        kind=_KINDS[report.verdict.word],
        version=__version__,
        css=Markup(page_style.style((_HERE / "drift.css").read_text(encoding="utf-8"))),
        charts=[_chart(report, one) for one in report.verdict.results if one.trend is not None],
        unmeasured=[one.measure.title for one in report.verdict.results if one.trend is None],
        strip=[(one.index, _image(one.reference), _image(one.output)) for one in thumbs],
        frames=[Tick(_x(at, num_frames), str(at)) for at in _steps(0, num_frames - 1, 6)],
        width=_WIDTH,
        height=_HEIGHT,
    ).strip()  # fmt: skip


def save(report: DriftReport, path: Path) -> None:
    """Write the page as one HTML file.

    Raises:
        MissingExtra: Pillow is not installed.
        OutputError: The file cannot be written.
    """
    write_whole(path, render(report))


def _chart(report: DriftReport, result: MeasureResult) -> Chart:
    """Draw one measure. The axis shows the middle 98 % of the values, and what is no drift."""
    assert result.trend is not None
    values = result.measure.scale(report.series.values[result.measure.name])
    num = len(values)
    at = np.flatnonzero(np.isfinite(values))
    smooth = _median(values[at], max(1, len(at) // 40))
    start, threshold = result.trend.first, result.threshold
    seen = [*np.quantile(values[at], [0.01, 0.99]), smooth.min(), smooth.max(), start - threshold, start + threshold]
    low, high = float(min(seen)), float(max(seen))
    room = 0.05 * (high - low)
    low, high = low - room, high + room

    def y(value: float) -> float:
        return round(_HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low)), 1)

    def path(places: npt.NDArray[np.intp], drawn: Array) -> str:
        return "M" + "L".join(f"{_x(int(i), num)} {y(float(value))}" for i, value in zip(places, drawn, strict=True))

    top = y(start + threshold)
    return Chart(
        result=result,
        raw=path(at, values[at]),
        smooth=path(at, smooth),
        band=(top, round(y(start - threshold) - top, 1)),
        first_end=_x(parts(num), num),
        last_start=_x(num - 1 - parts(num), num),
        onset=None if result.from_frame is None else _x(result.from_frame, num),
        ticks=tuple(Tick(y(one), _value(one, result)) for one in _labels(low, high, is_log=result.measure.is_ratio)),
    )


def _x(frame: float, num_frames: int) -> float:
    return round(_WIDTH * frame / max(1, num_frames - 1), 1)


def _median(values: Array, half: int) -> Array:
    """Return the running median over `half` values on both sides."""
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def _steps(low: float, high: float, wanted: int) -> list[int] | list[float]:
    """Return round numbers from `low` to `high`, about `wanted` steps apart; whole numbers for whole limits."""
    rough = max((high - low) / wanted, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if isinstance(low, int) and isinstance(high, int):
        return [round(i * step) for i in range(first, last + 1)]
    return [i * step for i in range(first, last + 1)]


def _labels(low: float, high: float, *, is_log: bool) -> list[float] | list[int]:
    """Return what an axis is labelled with: round numbers, whose logarithms are placed for a ratio."""
    if not is_log:
        return _steps(low, high, 3)
    if high - low > math.log(10):
        tens = range(math.ceil(low / math.log(10)), math.floor(high / math.log(10)) + 1)
        return [power * math.log(10) for power in tens]
    return [math.log(one) for one in _steps(math.exp(low), math.exp(high), 3) if one > 0]


def _value(value: float, result: MeasureResult) -> str:
    """Return a value as people read it: a ratio as such, not as its logarithm."""
    return f"{math.exp(value):.3g}" if result.measure.is_ratio else f"{0.0 if abs(value) < 1e-12 else value:.3g}"


def _change(change: float, result: MeasureResult) -> str:
    """Return a change as people read it: a factor for a ratio, a signed difference for anything else."""
    return f"×{math.exp(change):.3g}" if result.measure.is_ratio else f"{change:+.2g}"


def _image(pixels: npt.NDArray[np.uint8]) -> Markup:
    """Return an image as the address that contains it, a PNG."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow", "stream", "the page of a drift test") from error
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG", optimize=True)
    return Markup("data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii"))
