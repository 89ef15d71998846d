"""Plot a sweep: latency against size, on logarithmic axes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whet.comparison.bench.report import Sweep
from whet.errors import MissingExtra, OptionError, OutputError
from whet.ui import page_style

_FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path, sizes: Mapping[str, Sequence[int]]) -> None:
    """Check before a sweep that it can be plotted.

    Raises:
        OptionError: The file's suffix is unknown, or the sweep has a single point.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix not in _FORMATS:
        raise OptionError(f"--plot writes {', '.join(_FORMATS)}; {path.name} has none of these endings; rename it")
    if max((len(set(values)) for values in sizes.values()), default=0) < 2:
        raise OptionError("--plot needs a size that varies, as --batch 1,8,32")
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "report", "--plot")


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Write latency against batch or sequence, a line for each of the other size. The suffix says the format.

    Raises OptionError for an unknown suffix or a sweep of one point, MissingExtra without matplotlib, OutputError where
    the file cannot be written.
    """
    sizes = {name: [p.sizes[name] for p in sweep.points if name in p.sizes] for name in ("batch", "seq")}
    check_plot(path, sizes)
    from matplotlib.figure import Figure

    # The size with more values is the horizontal axis.
    axis, other = sorted(sizes, key=lambda name: -len(set(sizes[name])))
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=page_style.chart_colours())
    for label, values in _lines(sweep, axis, other).items():
        values.sort()
        axes.plot([x for x, _ in values], [y for _, y in values], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel({"batch": "samples per batch", "seq": "tokens per sample"}[axis])
    axes.set_ylabel("latency, ms (median)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    _save(figure, path)


def _lines(sweep: Sweep, axis: str, other: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in sweep.points:
        if point.latency_ms is not None and axis in point.sizes:
            label = point.target + (f", {other} {point.sizes[other]}" if other in point.sizes else "")
            lines[label].append((point.sizes[axis], point.latency_ms))
    return dict(lines)


def _save(figure: Any, path: Path) -> None:
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        figure.savefig(partial)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror}; choose another --plot") from error
