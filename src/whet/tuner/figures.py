"""Format figures for people, on the terminal and in the report: three significant digits with their unit.

A figure that was not measured is shown as a dash, never as a zero.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from whet.comparison.claim import Claim, claim_of
from whet.measure.stats import MAX_NOISE
from whet.techniques import TABLE
from whet.tuner.records import Agreement, QualityChange
from whet.tuner.result import MeasuredVariant, Result
from whet.ui.figures import DASH, digits, num_bytes, one_line, operations, percent
from whet.ui.figures import milliseconds as duration

__all__ = ["DASH", "digits", "duration", "num_bytes", "one_line", "operations", "percent"]


def from_to(before: str, after: str) -> str:
    """Join two figures of one unit: "164 ms" and "18.4 ms" give "164 → 18.4 ms"."""
    value, _, unit = before.partition(" ")
    return f"{value} → {after}" if unit and after.endswith(f" {unit}") else f"{before} → {after}"


def ratio(value: float | None) -> str:
    """Format a ratio as 3.42×."""
    return DASH if value is None or math.isnan(value) else f"{_hundredths(value)}×"


def spread(noise: float) -> str:
    """Say that runs of the original differ too much for a verdict: "by up to 3.87x; a verdict needs at most 1.25x".

    The factor is rounded up, so that it never reads as the limit that it exceeds.
    """
    factor = math.ceil(100 * noise - 1e-9) / 100 if noise < 9.995 else noise
    return f"runs of the original differ by up to {_hundredths(factor)}x; a verdict needs at most {MAX_NOISE:g}x"


def interval(ci95: Sequence[float] | None) -> str:
    """Format the 95% interval of a ratio as 3.31–3.54. A dash stands for none, which is what a single pair gives."""
    if ci95 is None or not all(math.isfinite(end) for end in ci95):
        return DASH
    return "–".join(map(_hundredths, ci95))


def change(found: QualityChange | None, max_drop: float) -> str:
    """Say in words what the samples of the evaluation show about the drop."""
    if found is None:
        return "scored as one number, so what the drop is on other samples is not known"
    differ = f"{found.num_worse} of {found.num_samples:,} samples scored worse, {found.num_better} better"
    if not found.num_worse + found.num_better:
        differ = f"each of the {found.num_samples:,} samples scored the same"
    low, high = map(percent, found.ci95)
    words = f"{differ}; 95% interval of the drop {low} to {high}"
    if found.is_shown:
        return words
    limit = percent(max_drop)
    if found.needed_samples is None:
        return f"{words}: too few samples to show a drop of at most {limit}, and more like these would not show it"
    return f"{words}: too few samples to show a drop of at most {limit}; about {found.needed_samples:,} could"


def most_drop(found: QualityChange | None) -> str:
    """Format the upper end of the interval of a drop as ≤0.95%."""
    return "" if found is None else f"≤{percent(found.ci95[1])}"


def capital(sentence: str) -> str:
    """Return a sentence with a capital first letter, unless it begins with the name of a technique."""
    first = re.match(r"\w*", sentence)
    return sentence if first and first[0] in TABLE else sentence[:1].upper() + sentence[1:]


def score(value: float | None) -> str:
    """Format a quality as its metric gives it, to four digits."""
    if value is None:
        return DASH
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def cosine(value: float | None) -> str:
    """Format a cosine with four decimals, without rounding up to 1."""
    if value is None or math.isnan(value):
        return DASH
    return ">0.9999" if 0.99995 <= value < 1 - 1e-12 else f"{value:.4f}"


def agreement(found: Agreement | None) -> str:
    """Format an agreement in words: "cosine 0.9993, error 3.7%, top-1 99%"."""
    if found is None:
        return DASH
    parts = [f"cosine {cosine(found.cosine)}", f"error {percent(found.relative_error)}"]
    if found.top1 is not None:
        parts.append(f"top-1 {percent(found.top1)}")
    return ", ".join(parts)


def p_value(value: float | None) -> str:
    if value is None or math.isnan(value):
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def has_metric(result: Result) -> bool:
    """Return whether the workload has a quality metric; else agreement with the original's outputs stands for it."""
    return result.baseline.quality is not None


def measured(value: int | float | None) -> float | None:
    """Return the value, or None for 0, which stands for a size or memory that was not measured."""
    return value or None


def over_compile_only(result: Result) -> Claim | None:
    """Compare the winner with torch.compile alone, by pairs of the finals; return None where these do not hold both."""
    other = result.compile_only
    if other is None:
        return None
    mine, theirs = result.best.process_latencies_ms, other.process_latencies_ms
    if not mine or len(mine) != len(theirs) or min(*mine, *theirs) <= 0:
        return None
    return claim_of(theirs, mine, noise=result.baseline.noise)


def final_points(result: Result) -> list[MeasuredVariant]:
    """Return the original, then the variants of the finals, fastest first, then those that were only screened."""
    points = {point.steps: point for point in result.finalists if point.steps}
    if result.compile_only is not None:
        points.setdefault(result.compile_only.steps, result.compile_only)
    if result.best.steps:
        points.setdefault(result.best.steps, result.best)
    return [result.baseline, *sorted(points.values(), key=lambda p: (p.verdict == "screened", -p.speedup))]


def is_compile_only(result: Result, point: MeasuredVariant) -> bool:
    return result.compile_only is not None and point.steps == result.compile_only.steps


def _hundredths(value: float) -> str:
    """Format a value with at least two decimals below 10, so that 0.98 and 1.02 differ."""
    return f"{value:.2f}" if 0.1 <= value < 9.995 else digits(value)


def load_call(directory: str, libraries: Sequence[str]) -> str:
    more = f", libraries={list(libraries)!r}" if libraries else ""
    return f"whet.load({directory!r}{more})"


def rate(per_s: float) -> str:
    """Format a number of samples a second with three digits at least."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def shortened(path: Path) -> Path:
    """Return a path as seen from the working directory, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
