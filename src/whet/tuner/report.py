"""Write report.html: one page that opens offline and shows everything that one run of `whet tune` found.

The page is made from a template (report.html.j2, which escapes all values), the style of all pages (ui/page_style/)
with the report's own (report.css), and SVG plots. It contains no script and refers to no other file.
"""

import datetime
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment
from markupsafe import Markup, escape

from whet.core.artefact.runtime import MODEL
from whet.core.recipe import Recipe
from whet.core.recipe_file import FILE as RECIPE
from whet.errors import MissingExtra, TargetError, how_to_install
from whet.files import write_whole
from whet.models.config_file import read_json
from whet.models.families import FAMILIES
from whet.tuner import figures, plots
from whet.tuner.figures import DASH
from whet.tuner.headline import headline
from whet.tuner.key_figures import key_figures, record_of
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.verdict import noise_in_words
from whet.ui import page_style
from whet.ui.templates import templates
from whet.workloads.model_directory import model_directory

_HERE = Path(__file__).parent
_VERDICTS = {"gain": "gain", "no-gain": "no gain", "inconclusive": "inconclusive", "failed": "failed"}
_TONES = {"gain": "good", "no-gain": "", "inconclusive": "busy", "failed": "bad"}
_ORDER = ("done", "rejected", "stopped", "failed", "refused", "running")
_MEANINGS = {
    "compute": "arithmetic is the limit: fewer operations, or a data type the machine multiplies faster, would help",
    "bandwidth": "moving bytes is the limit: fusion, smaller weights or smaller activations would help",
    "overhead": "calling operators costs more than they do: compilation, fusion or larger batches would help",
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_NO_PLOTS = f"plots need matplotlib: {how_to_install('report')}"


@dataclass(frozen=True)
class Figure:
    """Hold a plot, or the reason why there is none.

    Attributes:
        svg: The plot; None where there is nothing to draw.
        missing: What must be installed to draw it; "" where nothing is missing.
    """

    title: str
    svg: Markup | None = None
    missing: str = ""


def write_report(result: Result, path: Path, page: Callable[[Result, str], str]) -> None:
    """Write a page, whole or not at all.

    Args:
        page: Returns the page as text, from the result and the recipe as it lies on disk.

    Raises:
        OutputError: The file cannot be written.
    """
    write_whole(path, page(result, _recipe_text(result, path.parent)))


def render(result: Result, toml: str) -> str:
    """Return the page as text. `toml` is the recipe as it lies on disk."""
    return environment().get_template("report.html.j2").render(
        **shared(result, toml),
        tiles=key_figures(result),
        has_metric=figures.has_metric(result),
        quality_title=_quality_title(result),
        num_processes=len(result.baseline.process_latencies_ms),
        shares=_shares(result),
        any_memory=any(t.peak_bytes for t in result.trials),
        plots={
            "roofline": figure_of("Roofline", plots.roofline, result),
            "pareto": figure_of("Latency against quality", plots.pareto, result),
            "predicted": figure_of("Predicted against measured", plots.predicted_measured, result),
        },
        target_argument=shlex.quote(result.target),
        serve_call=_serve_call(result),
        load_call=figures.load_call(str(result.directory / MODEL), result.libraries),
    )  # fmt: skip


def shared(result: Result, toml: str, *styles: Path) -> dict[str, Any]:
    """Return what the pages of all kinds show; `styles` are style sheets of the page beside those of all reports."""
    trials, points = _in_order(result.trials), figures.final_points(result)
    layers, every_layer = plots.main_layers(result), result.diagnosis.layers if result.diagnosis else []
    layers_ms = sum(layer.time_ms for layer in every_layer)
    sheets = (path.read_text(encoding="utf-8") for path in (_HERE / "report.css", *styles))
    return {
        "r": result,
        "css": Markup(page_style.style("\n".join(sheets))),
        "verdict_word": _VERDICTS[result.verdict],
        "tone": _TONES[result.verdict],
        "said": headline(result),
        "go_on": _go_on_command(result),
        "day": _day(result.started_at),
        "noise": noise_in_words(result.baseline),
        "points": points,
        "compile_steps": result.compile_only.steps if result.compile_only else None,
        "finalist_steps": {point.steps for point in result.finalists},
        "winner_notes": _notes_of_best(result),
        "layers": layers,
        "layers_ms": layers_ms,
        "other_layers": {
            "count": len(every_layer) - len(layers),
            "time_ms": layers_ms - sum(layer.time_ms for layer in layers),
        },
        "limits": _limit_rows(result),
        "machine": _machine_rows(result),
        "trials": trials,
        "trial_counts": _counts(trials),
        "recipe_path": shlex.quote(str(result.directory / RECIPE)),
        "toml": toml,
        "spread": _spread(points),
    }


def _go_on_command(result: Result) -> str:
    """Return the command that goes on with a search that other programs disturbed; "" for others."""
    if not (result.is_disturbed and result.command and result.out):
        return ""
    words = [word for word in shlex.split(result.command) if word != "--resume"]
    out = [] if "--out" in words else ["--out", result.out]
    return shlex.join([*words, *out, "--resume"])


def _recipe_text(result: Result, directory: Path) -> str:
    """Return recipe.toml as it lies beside the report, or else the recipe's steps in the same form."""
    path = directory / RECIPE
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").strip()
    recipe = Recipe(
        target=result.target, fingerprint=result.fingerprint, versions=result.versions, steps=result.recipe.steps
    )
    return tomli_w.dumps(recipe.model_dump(exclude_none=True, exclude={"machine"}, mode="json")).strip()


def environment() -> Environment:
    named = (
        figures.cosine, figures.digits, figures.interval, figures.measured,
        figures.num_bytes, figures.operations, figures.p_value, figures.percent, figures.ratio, figures.score,
        figures.most_drop, figures.capital,
    )  # fmt: skip
    others: dict[str, Callable[..., Any]] = {
        "unbroken": _unbroken,
        "duration": figures.duration,
        "kind": lambda bound: bound.removesuffix("-bound"),
    }
    return templates(_HERE, others | {function.__name__: function for function in named})


def _unbroken(text: str) -> Markup:
    """Return a text as markup in which no line ends within an option such as --resume."""
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))


def figure_of(title: str, draw: Callable[[Result], str | None], result: Result) -> Figure:
    try:
        svg = draw(result)
    except MissingExtra:
        return Figure(title, missing=_NO_PLOTS)
    return Figure(title, svg=None if svg is None else Markup(svg))  # matplotlib escapes the text it draws


def _quality_title(result: Result) -> str:
    if not figures.has_metric(result):
        return "Agreement (cosine)"
    return result.quality_name[:1].upper() + result.quality_name[1:]


def _notes_of_best(result: Result) -> list[str]:
    record = record_of(result, result.best) if result.best.steps else None
    return list(record.notes) if record else []


def _shares(result: Result) -> list[dict[str, Any]]:
    shares = result.diagnosis.shares if result.diagnosis else {}
    total = sum(shares.values()) or 1.0
    found = []
    for name, value in sorted(shares.items(), key=lambda item: -item[1]):
        kind = name.removesuffix("-bound")
        width = f"{100 * value / total:.2f}"
        found.append({"name": name, "kind": kind, "value": value, "width": width, "meaning": _MEANINGS.get(kind, "")})
    return found


def _serve_call(result: Result) -> str:
    """Return the command that serves a language model with the recipe; "" for other models."""
    model = result.target.removeprefix("hf:")
    try:
        model_type = read_json(model_directory(model)).get("model_type")
    except TargetError:
        return ""
    if str(model_type) not in FAMILIES:
        return ""
    return f"whet serve {shlex.quote(model)} --recipe {shlex.quote(str(result.directory / RECIPE))}"


def _limit_rows(result: Result) -> list[tuple[str, str]]:
    rows = []
    bandwidth = result.limits.get("read_bandwidth")
    if bandwidth:
        rows.append(("memory, reading", f"{figures.digits(bandwidth / 1e9)} GB/s"))
    fastest = max((float(rate) for _, rate in result.limits.get("cached_bandwidth") or ()), default=0.0)
    if fastest:
        rows.append(("cache, reading", f"{figures.digits(fastest / 1e9)} GB/s"))
    for dtype, rate in (result.limits.get("gemm") or {}).items():
        rows.append((f"matrix product, {plots.dtype_name(dtype)}", f"{figures.digits(rate / 1e9)} GFLOP/s"))
    return rows


def _machine_rows(result: Result) -> list[tuple[str, str]]:
    rows = []
    for name, value in result.machine.items():
        if name.endswith("_bytes") and isinstance(value, int):
            name, text = name.removesuffix("_bytes"), figures.num_bytes(value)
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value))
        else:
            text = str(value)
        rows.append((name.replace("_", " "), text or "none"))
    return rows


def _in_order(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return trials with those that were measured first, the fastest before the others."""
    return sorted(trials, key=lambda t: (_ORDER.index(t.status), -(t.speedup or 0.0), t.number))


def _counts(trials: list[TrialRecord]) -> str:
    found = Counter[str](t.status for t in trials)
    parts = [f"{found[status]} {status}" for status in _ORDER if found[status]]
    noun = "trial" if len(trials) == 1 else "trials"
    return f"{len(trials)} {noun}: {', '.join(parts)}" if parts else "No trials"


def _day(started_at: str) -> str:
    """Return the day of a time in ISO format, for people; "" where it is none."""
    try:
        return datetime.datetime.fromisoformat(started_at).strftime("%d %B %Y").lstrip("0")
    except ValueError:
        return ""


def _spread(points: list[MeasuredVariant]) -> Callable[[MeasuredVariant], Markup]:
    """Return a function that draws the median of each process of a point as a dot, all on one scale from zero."""
    width, height = 110, 16
    longest = max((t for p in points for t in p.process_latencies_ms), default=1.0)

    def draw(point: MeasuredVariant) -> Markup:
        if not point.process_latencies_ms:
            return Markup(DASH)
        dots = "".join(
            f'<circle cx="{4 + (width - 8) * t / longest:.1f}" cy="{height / 2:g}" r="3"/>'
            for t in point.process_latencies_ms
        )
        return Markup(
            f'<svg class="spread" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
            f'<path d="M0 {height / 2:g}H{width}" stroke="var(--rule)"/>'
            f'<g fill="var(--accent)" fill-opacity="0.55">{dots}</g></svg>'
        )  # fmt: skip

    return draw
