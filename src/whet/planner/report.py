"""Write report.html of a plan: one page that opens offline, runs no script, and draws how the best plan scales."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from whet import __version__
from whet.files import usable_directory, write_whole
from whet.planner import words
from whet.planner.answer import PART_NAMES, PlanAnswer, ScalePoint
from whet.ui import page_style
from whet.ui.figures import digits, duration, num_bytes, percent
from whet.ui.templates import templates

_HERE = Path(__file__).parent
_WIDTH, _HEIGHT = 760, 320  # of the plotting area, in the units of the drawing

REPORT, ANSWER = "report.html", "plan.json"


@dataclass(frozen=True)
class Tick:
    """Hold a labelled place on an axis, in the units of the drawing."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """Hold a line of the drawing with its interval and points, and what they are.

    Attributes:
        band: The outline of the interval; "" where there is none.
        dots: The place of each point, with what it says.
    """

    name: str
    colour: int
    path: str
    band: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Drawing:
    """Hold the drawing of tokens a second over GPUs, both on logarithmic scales.

    Attributes:
        ideal: The line on which each GPU does what it does on the fewest.
        breaks: Where scaling breaks; None where it does not.
    """

    lines: tuple[Line, ...]
    ideal: str
    breaks: float | None
    columns: tuple[Tick, ...]
    rows: tuple[Tick, ...]
    width: int = _WIDTH
    height: int = _HEIGHT


def write_report(answer: PlanAnswer, directory: Path) -> None:
    """Write report.html and plan.json into a directory.

    Raises:
        OutputError: They cannot be written.
    """
    directory = usable_directory(directory)
    write_whole(directory / ANSWER, answer.model_dump_json(indent=1))
    write_whole(directory / REPORT, render(answer))


def render(answer: PlanAnswer) -> str:
    """Return the page as text."""
    filters: dict[str, Callable[..., Any]] = {
        "words_of": words.words_of,
        "memory_words": words.memory_words,
        "step_words": words.step_words,
        "sent_words": words.sent_words,
        "cost_words": words.cost_words,
        "trace_words": words.trace_words,
        "alternative_words": words.alternative_words,
        "count_words": words.count_words,
        "seconds": lambda one: words.interval_words(one, duration),
        "long": lambda one: words.interval_words(one, words.long_duration),
        "long_duration": words.long_duration,
        "dollars": lambda one: words.interval_words(one, words.dollars),
        "sizes": lambda one: words.interval_words(one, num_bytes),
        "rates": lambda one: words.interval_words(one, digits),
        "duration": duration,
        "digits": digits,
        "percent": percent,
        "num_bytes": num_bytes,
    }
    return templates(_HERE, filters).get_template("plan.html.j2").render(
        a=answer,
        best=answer.best,
        cluster=words.cluster_words(answer.cluster),
        part_names=PART_NAMES,
        scaling_said=words.scaling_words(answer.scaling) if answer.scaling else "",
        drawing=draw(answer),
        css=Markup(page_style.style((_HERE / "plan.css").read_text(encoding="utf-8"))),
        version=__version__,
    ).strip()  # fmt: skip


def draw(answer: PlanAnswer) -> Drawing | None:
    """Return the drawing of how the best plan scales; None where fewer than two numbers of GPUs have a plan."""
    scaling = answer.scaling
    if scaling is None:
        return None
    kinds = (("the batch as given", 0, scaling.fixed), ("a batch that grows with the GPUs", 4, scaling.growing))
    there = [one for _, _, points in kinds for one in points if one.tokens_per_s is not None]
    first = next((one for one in scaling.fixed if one.tokens_per_s is not None), None)
    if first is None or first.tokens_per_s is None or len({one.chips for one in there}) < 2:
        return None
    chips = sorted({one.chips for one in scaling.fixed} | {one.chips for one in there})
    each = first.tokens_per_s.value / first.chips
    bounds = [bound for one in there if (speed := one.tokens_per_s) for bound in (speed.low, speed.high)]
    low, high = math.floor(math.log10(min(bounds))), math.ceil(math.log10(max(*bounds, each * chips[-1])))

    def x(number: float) -> float:
        return _WIDTH * math.log(number / chips[0]) / math.log(chips[-1] / chips[0])

    def y(speed: float) -> float:
        return _HEIGHT * (high - math.log10(speed)) / (high - low)

    def line(name: str, colour: int, points: tuple[ScalePoint, ...]) -> Line:
        found = [(one, speed) for one in points if (speed := one.tokens_per_s) is not None]
        upper = [f"{x(one.chips):.1f},{y(speed.high):.1f}" for one, speed in found]
        lower = [f"{x(one.chips):.1f},{y(speed.low):.1f}" for one, speed in reversed(found)]
        dots = tuple(
            (
                x(one.chips),
                y(speed.value),
                f"{one.chips:,} GPUs, {one.global_batch_size:,} rows: {digits(speed.value)} tokens/s, MFU "
                f"{percent(one.mfu)}; {words.words_of(one.layout) if one.layout else ''}",
            )
            for one, speed in found
        )
        path = "M" + " L".join(f"{x(one.chips):.1f},{y(speed.value):.1f}" for one, speed in found)
        return Line(name, colour, path, f"M{' L'.join([*upper, *lower])}Z", dots)

    return Drawing(
        lines=tuple(line(*one) for one in kinds if any(point.tokens_per_s for point in one[2])),
        ideal=f"M{x(first.chips):.1f},{y(each * first.chips):.1f} L{x(chips[-1]):.1f},{y(each * chips[-1]):.1f}",
        breaks=None if scaling.breaks_at is None else x(scaling.breaks_at),
        columns=tuple(Tick(x(one), f"{one:,}") for one in chips if one & (one - 1) == 0 or len(chips) < 4),
        rows=tuple(Tick(y(10.0**one), _short(10.0**one)) for one in range(low, high + 1)),
    )


def _short(number: float) -> str:
    """Format a power of ten for an axis: 100, 10k, 1M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"
