"""Write report.html of a training: one page that opens offline, in the style of the report of a model's calls."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from whet.core.recipe_file import FILE as RECIPE
from whet.techniques.costs.memory import PARTS
from whet.tuner import figures, plots
from whet.tuner.figures import DASH
from whet.tuner.key_figures import Tile, byte_tile, compile_tile, speed_tile
from whet.tuner.records import TrialRecord
from whet.tuner.report import environment, figure_of, shared
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.time_account import time_sentence
from whet.tuner.training.loss_chart import loss_chart
from whet.tuner.training.shared_words import PLAN, plan_file, plan_sentences
from whet.tuner.training.words import batch_sentences, proofs_of, run_command

# --c0 to --c6; the second line: the phases of a script
_COLOURS = {
    **{"data": 1, "products": 0, "attention": 5, "loss": 4, "other operators": 3, "optimiser": 2},
    **{"data wait": 1, "forward": 0, "backward": 5, "rest": 3},
}
_TEMPLATE = "training/report.html.j2"


def render(result: Result, toml: str) -> str:
    points, page = figures.final_points(result), environment()
    page.filters |= {"joules": _joules, "memory_parts": _memory_cells}
    return page.get_template(_TEMPLATE).render(
        **shared(result, toml, Path(__file__).with_name("report.css")),
        tiles=_tiles(result),
        proofs=_proofs(result),
        batches=batch_sentences(result),
        time=time_sentence(result.time_s, result.compile_s),
        memory=_memory(points),
        memory_names=tuple(PARTS.values()),
        shares=_shares(result),
        any_energy=any(_joules(p) != DASH for p in points) or any(_joules(trial) != DASH for trial in result.trials),
        plots={
            "time_memory": figure_of("Time and memory of a step", plots.time_memory, result),
            "predicted": figure_of("Predicted against measured", plots.predicted_measured, result),
        },
        recipe_literal=repr(str(result.directory / RECIPE)),
        run_call=run_command(result),
        plan=plan_file(result) if result.num_processes > 1 else "",
        plan_path=str(figures.shortened(result.directory / PLAN)),
        plan_words=plan_sentences(result),
    )


def _tiles(result: Result) -> list[Tile]:
    tiles = [
        speed_tile(result),
        _step_tile(result),
        _memory_tile(result),
        _proof_tile(result),
        _set_up_tile(result),
        compile_tile(result),
    ]
    return sorted(tiles, key=lambda tile: not tile.main)


def _step_tile(result: Result) -> Tile:
    best, baseline = result.best, result.baseline
    before, rates = figures.duration(baseline.latency_ms), figures.digits(baseline.throughput_per_s)
    energy = "" if _joules(best) == DASH else f"; {_joules(best)} of energy"
    if not best.steps:
        return Tile("Time of a step", before, f"{rates} {result.unit}/s{energy}; the original stays")
    after = figures.duration(best.latency_ms, like=baseline.latency_ms)
    rates += f" → {figures.digits(best.throughput_per_s)} {result.unit}/s"
    return Tile("Time of a step", figures.from_to(before, after), rates + energy)


def _memory_tile(result: Result) -> Tile:
    best, baseline = result.best, result.baseline
    return byte_tile(
        "Peak memory of the training",
        baseline.peak_bytes,
        best.peak_bytes if best.steps and best.peak_bytes and baseline.peak_bytes else None,
        main=result.objective == "memory",
        stays="above what the process held before",
        tone="good" if best.is_smaller else "",
    )


def _proof_tile(result: Result) -> Tile:
    best = result.best
    if best.losses is not None:
        proof = best.losses
        value = f"{round(proof.drop, 4) + 0.0:+.2%}".replace("-", "−")
        detail = f"worse at most {figures.percent(proof.most)}, allowed {figures.percent(proof.allowed)}; "
        return Tile(figures.capital(proof.score), value, f"{detail}{len(proof.pairs)} pairs of runs", tone="good")
    if best.steps and best.training is not None and best.training.gradients is not None:
        found = best.training.gradients
        detail = f"relative error {found.error:.1e} against float64; the original’s own is {found.original_error:.1e}"
        return Tile("Gradients", "the same", detail, tone="good")
    return Tile("The same training", DASH, "the original stays")


def _set_up_tile(result: Result) -> Tile:
    evidence = result.best.training
    if not result.best.steps or evidence is None or evidence.set_up_s is None:
        return Tile("Set-up, once", DASH, "nothing is compiled")
    gained_s = (result.baseline.latency_ms - result.best.latency_ms) / 1e3
    value = figures.duration(evidence.set_up_s * 1e3)
    if gained_s <= 0 or evidence.set_up_s < gained_s:
        return Tile("Set-up, once", value, "techniques and compilation; part of no step")
    steps = f"{evidence.set_up_s / gained_s:,.0f}"
    return Tile("Set-up, once", value, f"techniques and compilation; made good after {steps} steps")


def _proofs(result: Result) -> list[dict[str, Any]]:
    return [
        {
            "steps": point.steps,
            "facts": proofs_of(point),
            "chart": _chart(result, point),
        }
        for point in figures.final_points(result)
        if point.steps and proofs_of(point)
    ]


def _chart(result: Result, point: MeasuredVariant) -> Markup | None:
    if point.losses is None or not point.losses.pairs:
        return None
    return Markup(loss_chart(point.losses, higher_is_better=result.higher_is_better))  # it escapes the text it draws


def _memory(points: list[MeasuredVariant]) -> list[dict[str, Any]]:
    """Return a row of the chart of memory for each point, all on one scale."""
    known = [(point.steps, point.training.memory) for point in points if point.training and point.training.memory]
    most = max((memory.peak_bytes for _, memory in known), default=0) or 1
    return [
        {
            "steps": steps,
            "total": memory.peak_bytes,
            "width": f"{100 * memory.peak_bytes / most:.2f}",
            "parts": [
                {"name": name, "bytes": value, "width": f"{100 * value / (sum(memory.parts.values()) or 1):.2f}"}
                for name, value in memory.parts.items()
            ],
        }
        for steps, memory in known
    ]


def _memory_cells(trial: TrialRecord) -> list[tuple[str, int | None]]:
    memory = trial.training.memory if trial.training is not None else None
    return list(memory.parts.items()) if memory is not None else [(name, None) for name in PARTS.values()]


def _shares(result: Result) -> list[dict[str, Any]]:
    """Return the parts of the original's step, in the order of the loop."""
    shares = result.diagnosis.shares if result.diagnosis else {}
    total = sum(shares.values()) or 1.0
    seconds = dict(result.profile.parts.values()) if result.profile is not None else {}
    return [
        {
            "name": name,
            "colour": _COLOURS.get(name, 0),
            "value": value,
            "width": f"{100 * value / total:.2f}",
            "ms": seconds[name] * 1e3 if name in seconds else None,
        }
        for name, value in shares.items()
    ]


def _joules(one: MeasuredVariant | TrialRecord) -> str:
    energy = one.training.joules_per_step if one.training is not None else None
    return DASH if energy is None else f"{figures.digits(energy)} J"
