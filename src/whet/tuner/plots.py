"""Draw the report's plots as SVG elements for a page. matplotlib draws, and the page's style sheet sets the colours.

Every colour drawn stands for one of the page's CSS variables, so that a plot follows the light or dark scheme. The same
result gives the same SVG.
"""

import io
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from whet.errors import MissingExtra
from whet.profiling.bounds import Bound
from whet.tuner import figures
from whet.tuner.records import TrialRecord
from whet.tuner.result import LayerRow, Result

_STYLE = {
    "font.size": 10,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "legend.fontsize": 9.2,
    "legend.handletextpad": 0.4,
    "legend.labelspacing": 0.35,
}

# Each colour stands for a CSS variable. No two are equal, and matplotlib uses none of them by itself.
_NAMES = ("ink", "muted", "rule", "paper", "accent", "good", "busy", "bad", "compute", "bandwidth", "overhead")
INK, MUTED, RULE, PAPER, ACCENT, GOOD, BUSY, BAD, COMPUTE, BANDWIDTH, OVERHEAD = _COLOURS = [
    f"#0a00{i:02x}" for i in range(1, len(_NAMES) + 1)
]
_BOUNDS = {Bound.COMPUTE: (COMPUTE, "o"), Bound.BANDWIDTH: (BANDWIDTH, "s"), Bound.OVERHEAD: (OVERHEAD, "^")}
_DTYPES = {"float64": "fp64", "float32": "fp32", "tfloat32": "tf32", "bfloat16": "bf16", "float16": "fp16"}

Axes = Any
_MAX_LAYERS = 12  # layers in the plot, with the numbers that they have in the table beside it
_BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 3}  # the place of a legend
_ONE_LABEL = 0.05  # two lines that are closer than this share of the axis share a label


def roofline(result: Result) -> str | None:
    """Draw layers by operations per byte and per second, below the machine's limits; None where either is not known."""
    gemm = {name: rate / 1e9 for name, rate in (result.limits.get("gemm") or {}).items()}
    bandwidth = (result.limits.get("read_bandwidth") or 0.0) / 1e9
    layers = [layer for layer in main_layers(result) if layer.flops and layer.bytes and layer.time_ms]
    if not gemm or not bandwidth or not layers:
        return None
    intensities = [layer.flops / layer.bytes for layer in layers]
    rates = [layer.flops / layer.time_ms / 1e6 for layer in layers]
    ridge = max(gemm.values()) / bandwidth
    span = (min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 4)
    with _plot("roofline") as (axes, finish):
        for name in ("x", "y"):
            _number_axis(axes, name, _plain, logarithmic=True)
        axes.set_xlim(*span)
        axes.set_ylim(min([*rates, min(gemm.values())]) / 4, max(gemm.values()) * 2.2)
        _limit_lines(axes, gemm, bandwidth, result.limits.get("cached_bandwidth") or (), span)
        _layer_points(axes, layers, intensities, rates, main_layers(result))
        _label(axes, "operations per byte", "GFLOP/s", loc="lower right")
        return finish()


def pareto(result: Result) -> str | None:
    """Draw trials by latency and loss of quality, with the size on disk as area; None where no trial was timed."""
    trials = [t for t in result.trials if t.latency_ms and t.drop is not None and math.isfinite(t.drop)]
    if not trials:
        return None
    baselines = [t.baseline_latency_ms for t in trials if t.baseline_latency_ms]
    latencies = [t.latency_ms or 0.0 for t in trials] + baselines
    unit, scale = ("ms", 1.0) if max(latencies) >= 1 else ("µs", 1e3)
    ceiling = 400 * max(result.max_drop, 0.001)  # percent; what lies beyond is drawn at the edge
    with _plot("pareto") as (axes, finish):
        wide = max(latencies) > 6 * min(latencies)
        _number_axis(axes, "x", _plain, logarithmic=wide)
        axes.set_xlim(*_spread_out([scale * value for value in latencies], logarithmic=wide))
        axes.set_ylim(min(*(_height(t, ceiling) for t in trials), 0.0) - 0.1 * ceiling, 1.08 * ceiling)
        axes.axhline(100 * result.max_drop, color=BUSY, linestyle=(0, (4, 3)), linewidth=1)
        axes.annotate(
            "allowed", (1, 100 * result.max_drop), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", ha="right", color=BUSY, fontsize=9.2,
        )  # fmt: skip
        largest = max(result.baseline.size_bytes, 1, *(t.size_bytes or 0 for t in trials))
        if baselines:
            _original(axes, scale * statistics.median(baselines), 0, _area(result.baseline.size_bytes, largest))
        _trial_points(axes, result, [(t, scale * (t.latency_ms or 0.0), _height(t, ceiling)) for t in trials], largest)
        _label(axes, f"latency in the screening, {unit}", "drop in quality, %", **_BELOW)
        return finish()


def predicted_measured(result: Result) -> str | None:
    """Draw trials' bounds on the gain, from the diagnosis, against the gains measured; None with fewer than two."""
    trials = [t for t in result.trials if t.predicted and t.speedup and math.isfinite(t.predicted)]
    if len(trials) < 2:
        return None
    values = [v for t in trials for v in (t.predicted, t.speedup) if v]
    low, high = min([0.8, *values]) / 1.15, max(values) * 1.25
    with _plot("predicted") as (axes, finish):
        for name in ("x", "y"):
            _number_axis(axes, name, _times, logarithmic=high > 5 * low)
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1, label="as predicted")
        axes.axhline(1, color=RULE, linewidth=1, zorder=0)
        _status_points(axes, [(t, t.predicted or 0.0, t.speedup or 0.0) for t in trials])
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        _label(axes, "bound on the gain, from the diagnosis", "gain in the screening", loc="upper left")
        return finish()


def time_memory(result: Result) -> str | None:
    """Draw trials of a training by time and peak memory of a step; None with fewer than two that have both."""
    trials = [t for t in result.trials if t.latency_ms and t.peak_bytes]
    memory = result.baseline.training.memory if result.baseline.training is not None else None
    if len(trials) < 2:
        return None
    with _plot("memory") as (axes, finish):
        for name in ("x", "y"):
            _number_axis(axes, name, _plain, logarithmic=False)
        if memory is not None:
            _original(axes, result.baseline.latency_ms, memory.peak_bytes / 1e6, 48)
        placed = [(t, t.latency_ms or 0.0, (t.peak_bytes or 0) / 1e6) for t in trials]
        _status_points(axes, placed)
        _number(axes, [(x, y, f"#{t.number}") for t, x, y in placed])
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
        _label(axes, "time of a step in the screening, ms", "peak memory of a step, MB", **_BELOW)
        return finish()


def main_layers(result: Result) -> list[LayerRow]:
    """Return the layers that take the most time, longest first."""
    layers = result.diagnosis.layers if result.diagnosis else []
    return sorted(layers, key=lambda layer: -layer.time_ms)[:_MAX_LAYERS]


def dtype_name(name: str) -> str:
    """Return a dtype's short name, such as fp32."""
    return _DTYPES.get(name, name)


@contextmanager
def _plot(name: str) -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Yield axes to draw on, and a function that turns them into SVG.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "report", "a plot") from error
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.8, 4.1), layout="constrained")
        axes = figure.subplots()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.grid(visible=True, color=RULE, linewidth=0.7)
        axes.tick_params(which="both", color=RULE, labelcolor=MUTED, labelsize=9.2)
        axes.spines[:].set_color(RULE)

        def finish() -> str:
            buffer = io.BytesIO()
            metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(buffer, format="svg", metadata=metadata)
            return _inline(buffer.getvalue().decode())

        yield axes, finish


def _inline(svg: str) -> str:
    """Turn an SVG file into an element of a page, without prolog, style and names that nothing refers to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>|<metadata.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg)[^>]*?(viewBox="[^"]*")[^>]*>', r'\1 \2 aria-hidden="true">', svg, count=1)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for name, colour in zip(_NAMES, _COLOURS, strict=True):
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _limit_lines(
    axes: Axes, gemm: dict[str, float], bandwidth: float, cached: Sequence[Any], span: tuple[float, float]
) -> None:
    top = max(gemm.values())
    slopes: list[tuple[float, Any, str]] = [(bandwidth, "-", f"memory {figures.digits(bandwidth)} GB/s")]
    fastest = max((float(rate) / 1e9 for _, rate in cached), default=0.0)
    if fastest > 1.2 * bandwidth:
        slopes.append((fastest, (0, (4, 3)), f"cache {figures.digits(fastest)} GB/s"))
    for rate, style, label in slopes:
        axes.plot(
            [span[0], top / rate], [span[0] * rate, top], color=BANDWIDTH, linestyle=style, linewidth=1.3, label=label
        )
    peaks = sorted(gemm.items(), key=lambda item: item[1])
    low, high = axes.get_ylim()
    near = (high / low) ** _ONE_LABEL  # the axis is logarithmic
    labels: list[str] = []
    for (name, rate), (_, above) in zip(peaks, [*peaks[1:], ("", math.inf)], strict=True):
        axes.plot([rate / bandwidth, span[1]], [rate, rate], color=COMPUTE, linewidth=1.3)
        labels.append(f"{dtype_name(name)} {figures.digits(rate)}")
        if above > near * rate:
            axes.annotate(
                ", ".join(labels), (span[1], rate), xytext=(-2, 3), textcoords="offset points",
                ha="right", color=COMPUTE, fontsize=9.2, parse_math=False,
            )  # fmt: skip
            labels = []


def _layer_points(
    axes: Axes, layers: Sequence[LayerRow], xs: Sequence[float], ys: Sequence[float], ranking: Sequence[LayerRow]
) -> None:
    longest = max(layer.time_ms for layer in layers)
    for bound, (colour, marker) in _BOUNDS.items():
        places = [i for i, layer in enumerate(layers) if layer.bound == bound]
        if places:
            axes.scatter(
                [xs[i] for i in places], [ys[i] for i in places], s=[_area(layers[i].time_ms, longest) for i in places],
                marker=marker, color=colour, alpha=0.75, linewidth=0, label=bound, zorder=3,
            )  # fmt: skip
    _number(axes, [(x, y, str(ranking.index(layer) + 1)) for layer, x, y in zip(layers, xs, ys, strict=True)])


def _original(axes: Axes, x: float, y: float, area: float) -> None:
    axes.scatter([x], [y], s=area, marker="D", facecolor=PAPER, edgecolor=INK, label="original", zorder=3)


def _status_points(axes: Axes, placed: Sequence[tuple[TrialRecord, float, float]]) -> None:
    """Draw one marker per trial at (x, y), where its quality was judged."""
    for status, label, colour, marker in (("done", "kept quality", ACCENT, "o"), ("rejected", "rejected", BAD, "X")):
        if chosen := [(x, y) for t, x, y in placed if t.status == status]:
            axes.scatter(
                *zip(*chosen, strict=True), s=38, marker=marker, color=colour, alpha=0.85, linewidth=0, label=label,
                zorder=3,
            )  # fmt: skip


def _trial_points(axes: Axes, result: Result, placed: Sequence[tuple[TrialRecord, float, float]], largest: int) -> None:
    """Draw one marker per trial at (x, y). Trials beyond the axis are triangles at its edge."""
    groups: dict[str, dict[str, Any]] = {
        "winner": {"facecolor": GOOD, "edgecolor": GOOD},
        "Pareto": {"facecolor": ACCENT, "edgecolor": ACCENT},
        "other": {"facecolor": "none", "edgecolor": MUTED},
        "rejected": {"facecolor": "none", "edgecolor": BAD},
    }
    members: dict[tuple[str, bool], list[tuple[TrialRecord, float, float]]] = {}
    for trial, x, y in placed:
        is_beyond = abs(100 * (trial.drop or 0.0)) > abs(y) + 1e-9
        members.setdefault((_group(result, trial), is_beyond), []).append((trial, x, y))
    for name, style in groups.items():
        for is_beyond in (False, True):
            chosen = members.get((name, is_beyond), [])
            if chosen:
                axes.scatter(
                    [x for _, x, _ in chosen], [y for _, _, y in chosen],
                    s=[_area(t.size_bytes or 0, largest) for t, _, _ in chosen], marker="^" if is_beyond else "o",
                    label=f"{name}, beyond the axis" if is_beyond else name, linewidth=1.2, alpha=0.9,
                    zorder=3, **style,
                )  # fmt: skip
    named = sorted(placed, key=lambda place: _group(result, place[0]) != "winner")
    _number(axes, [(x, y, f"#{t.number}") for t, x, y in named if _group(result, t) in ("winner", "Pareto")])


def _group(result: Result, trial: TrialRecord) -> str:
    if result.best.steps and trial.steps == result.best.steps:
        return "winner"
    if trial.status == "rejected":
        return "rejected"
    return "Pareto" if trial.number in result.pareto else "other"


def _height(trial: TrialRecord, ceiling: float) -> float:
    """Return the drop in percent, cut off at the plot's edge."""
    return max(-ceiling, min(100 * (trial.drop or 0.0), ceiling))


def _number(axes: Axes, places: Sequence[tuple[float, float, str]]) -> None:
    """Write each text beside its point, unless it would cover an earlier one."""
    taken: list[tuple[float, float]] = []
    for x, y, text in places:
        across, up = axes.transLimits.transform(axes.transScale.transform((x, y)))
        if all(abs(across - a) > 0.035 + 0.015 * len(text) or abs(up - u) > 0.06 for a, u in taken):
            taken.append((across, up))
            axes.annotate(
                text, (x, y), xytext=(7, 5), textcoords="offset points", color=INK, fontsize=9.2, zorder=4,
                parse_math=False,
            )  # fmt: skip


def _spread_out(values: Sequence[float], *, logarithmic: bool) -> tuple[float, float]:
    """Return the ends of an axis, with room at both sides."""
    low, high = min(values), max(values)
    if logarithmic:
        room = (high / low) ** 0.08
        return low / room, high * room
    room = 0.1 * (high - low) or 0.1 * high
    return low - room, high + room


def _area(value: float, largest: float) -> float:
    return 26 + 190 * max(value, 0) / largest


def _number_axis(axes: Axes, name: str, text: Callable[[float, Any], str], *, logarithmic: bool) -> None:
    """Label the "x" or "y" axis with round numbers in plain digits, since powers would be drawn letter by letter."""
    from matplotlib import ticker

    if logarithmic:
        axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=8) if logarithmic else ticker.MaxNLocator(6))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(text))


def _plain(value: float, _: Any) -> str:
    return f"{value:,.10g}" if value >= 1e-4 else f"{value:g}"


def _times(value: float, _: Any) -> str:
    return f"{_plain(value, None)}×"


def _label(axes: Axes, x: str, y: str, **where: Any) -> None:
    """Name both axes, and draw the legend."""
    axes.set_xlabel(x, color=MUTED)
    axes.set_ylabel(y, color=MUTED)
    legend = axes.legend(labelcolor=MUTED, **where)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([38])
