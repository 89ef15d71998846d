"""Compute the report's key figures: what was gained, in six figures, each with what is needed to judge it."""

from dataclasses import dataclass

from whet.tuner import figures
from whet.tuner.figures import DASH
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result

_SPEED = "Speedup over the original"


@dataclass(frozen=True)
class Tile:
    """Hold one key figure.

    Attributes:
        detail: What is needed to judge it.
        main: Whether it is the objective's own figure.
        tone: "good", "busy" or "".
    """

    title: str
    value: str
    detail: str
    main: bool = False
    tone: str = ""


def key_figures(result: Result) -> list[Tile]:
    """Return the six figures, the objective's own first."""
    tiles = [
        speed_tile(result),
        _latency_tile(result),
        _quality_tile(result),
        *_byte_tiles(result),
        compile_tile(result),
    ]
    return sorted(tiles, key=lambda tile: not tile.main)


def speed_tile(result: Result) -> Tile:
    """Return the speedup of the best variant, or what is known of the nearest one."""
    best = result.best
    main = result.objective == ("throughput" if result.is_of_training else "latency")
    if best.steps:
        detail = f"95% interval {figures.interval(best.speedup_ci95)}"
        if best.p_value is not None:
            detail += f", p = {figures.p_value(best.p_value)}".replace("= <", "< ")
        if best.verdict != "pass":
            detail += f"; {_said(best)}"
        return Tile(_SPEED, figures.ratio(best.speedup), detail, main, "good" if best.verdict == "pass" else "")
    others = figures.final_points(result)[1:]
    if not others:
        return Tile(_SPEED, DASH, result.busy or "nothing came to the finals", main)
    nearest = others[0]
    if nearest.verdict == "pass":  # it is faster, but not better in the objective
        return Tile(_SPEED, DASH, "the original stays", main)
    if nearest.doubt:  # a factor that is in doubt is not shown
        return Tile(_SPEED, "no verdict", nearest.doubt, main, "busy")
    tone = "busy" if nearest.verdict == "inconclusive" else ""
    between = figures.interval(nearest.speedup_ci95)
    detail = f"nearest: {figures.ratio(nearest.speedup)}, 95% interval {between}, {_said(nearest)}"
    return Tile(_SPEED, "none proved", detail, main, tone)


def _latency_tile(result: Result) -> Tile:
    best, baseline = result.best, result.baseline
    before = figures.duration(baseline.latency_ms)
    rates = figures.digits(baseline.throughput_per_s or None)
    main = result.objective == "throughput"
    if not best.steps:
        return Tile("Latency", before, f"{rates} samples/s; the original stays", main)
    after = figures.duration(best.latency_ms, like=baseline.latency_ms)
    rates += f" → {figures.digits(best.throughput_per_s or None)} samples/s"
    return Tile("Latency of one batch", figures.from_to(before, after), rates, main)


def _quality_tile(result: Result) -> Tile:
    best, baseline = result.best, result.baseline
    if not figures.has_metric(result):
        title = "Agreement with the original"
        if best.agreement is None:
            return Tile(title, DASH, "no quality metric was given")
        words = figures.agreement(best.agreement).partition(", ")
        return Tile(title, words[0], f"{words[2]}; no quality metric was given")
    title = f"Quality: {result.quality_name}"
    direction = "higher" if result.higher_is_better else "lower"
    if not best.steps or best.quality is None or baseline.quality is None:
        return Tile(title, figures.score(baseline.quality), f"of the original; {direction} is better")
    record = record_of(result, best)
    drop = f"drop {figures.percent(record.drop)}, allowed {figures.percent(result.max_drop)}; " if record else ""
    value = f"{figures.score(baseline.quality)} → {figures.score(best.quality)}"
    detail = f"{drop}{direction} is better; {figures.change(best.change, result.max_drop)}"
    return Tile(title, value, detail, tone="busy" if best.change is not None and not best.change.is_shown else "")


def _byte_tiles(result: Result) -> list[Tile]:
    best, baseline, stays = result.best, result.baseline, "the original’s"
    size, peak = (best.size_bytes or 0, best.peak_bytes or 0) if best.steps else (None, None)
    main, words = result.objective == "size", ("smaller", "larger")
    return [
        byte_tile("Size on disk", baseline.size_bytes, size, main=main, stays=stays, words=words),
        byte_tile(
            "Peak memory of the process", baseline.peak_bytes, peak, main=result.objective == "memory", stays=stays
        ),
    ]


def byte_tile(
    title: str,
    before: int | None,
    after: int | None,
    *,
    main: bool,
    stays: str,
    words: tuple[str, str] = ("less", "more"),
    tone: str = "",
) -> Tile:
    """Return how many bytes became how many. `words` are what fewer bytes are called, and more.

    `after` is None where the original stays, which `stays` then says.
    """
    first = figures.num_bytes(before or None)
    if after is None:
        return Tile(title, first, stays, main)
    detail = DASH
    if before and after:
        low, high = sorted((before, after))
        detail = "the same" if low == high else f"{figures.ratio(high / low)} {words[after > before]}"
    second = figures.num_bytes(after or None, like=before or None)
    return Tile(title, figures.from_to(first, second), detail, main, tone)


def compile_tile(result: Result) -> Tile:
    """Return the gain over torch.compile alone, so that no gain is claimed over eager mode only."""
    other, title = result.compile_only, "Speedup over torch.compile alone"
    if other is None:
        return Tile(title, DASH, "torch.compile alone was not measured")
    latency = figures.duration(other.latency_ms, like=result.baseline.latency_ms)
    if other.beside_ms is not None:
        latency += f", the original {figures.duration(other.beside_ms, like=result.baseline.latency_ms)} beside it"
    itself = f"torch.compile alone: {latency}, {figures.ratio(other.speedup)} of the original’s speed, {_said(other)}"
    if not result.best.steps:
        return Tile(title, DASH, itself)
    if figures.is_compile_only(result, result.best):
        return Tile(title, DASH, "the winner is torch.compile alone")
    compared = figures.over_compile_only(result)
    if compared is not None:
        detail = f"95% interval {figures.interval(compared.ci95)}; alone {latency}"
        tone = {"pass": "good", "inconclusive": "busy"}.get(compared.verdict, "")
        return Tile(title, figures.ratio(compared.ratio), detail, tone=tone)
    rough = figures.ratio(result.best.speedup / other.speedup) if other.speedup else DASH
    how = "by screening figures" if other.verdict == "screened" else "each against the original"
    return Tile(title, f"≈ {rough}", f"{how}, not measured in pairs; alone {latency}")


def _said(point: MeasuredVariant) -> str:
    return {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "screened": "screening only"}.get(
        point.verdict, "not judged"
    )


def record_of(result: Result, point: MeasuredVariant) -> TrialRecord | None:
    return next((t for t in result.trials if t.steps == point.steps and t.status == "done"), None)
