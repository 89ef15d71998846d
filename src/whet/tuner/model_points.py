"""Describe models and their variants as points of a result, and say what the best of them gains."""

import statistics
from collections.abc import Sequence
from typing import Any

from whet.comparison.run import Run
from whet.tuner import figures
from whet.tuner.build import is_in_process
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import Goal
from whet.tuner.headline import CANNOT_BE_SAVED, UNFAIR_MEMORY
from whet.tuner.in_process import ADVICE
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant


def measured(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the fields of a point that the runs of its processes give, at least one."""
    return {
        "latency_ms": statistics.median(run.latency_ms for run in runs),
        "p90_ms": statistics.median(1e3 * run.p90_s for run in runs if run.p90_s is not None),
        "peak_bytes": max(run.peak_bytes for run in runs),
        "live_tensor_bytes": max(run.live_tensor_bytes for run in runs),
        "cuda_peak_bytes": max((run.cuda_peak_bytes for run in runs if run.cuda_peak_bytes), default=None),
    }


def gain_sentence(
    goal: Goal,
    baseline: MeasuredVariant,
    best: MeasuredVariant,
    compile_only: MeasuredVariant | None,
    quality_name: str,
    *,
    is_fair: bool = True,
) -> str:
    """Return what was gained, in a sentence.

    `is_fair` says whether the original's memory is that of the model alone.
    """
    low, high = best.speedup_ci95
    text = f"{best.label} is {best.speedup:.2f}x as fast as the original (95% interval {low:.2f} to {high:.2f})"
    if goal.objective == "memory":
        text += f" and holds {baseline.peak_bytes / best.peak_bytes:.2f}x less memory at its peak"
        if not is_fair:
            text += f" ({UNFAIR_MEMORY})"
    if goal.objective == "size":
        text += f" and is {baseline.size_bytes / best.size_bytes:.2f}x smaller on disk"
    if compile_only is not None and best.steps != compile_only.steps:
        where = " in the screening" if compile_only.verdict == "screened" else ""
        text += f", torch.compile alone {compile_only.speedup:.2f}x{where}"
    if best.quality is not None:
        before = "" if baseline.quality is None else f"{baseline.quality:.4g} before, "
        text += f"; {quality_name}: {before}{best.quality:.4g} after"
        if baseline.quality is not None:
            text += f" ({figures.change(best.change, goal.max_drop)})"
    if best.fixed_batch is not None:
        text += f"; fixed to batch {best.fixed_batch}"
    if is_in_process(best.steps):
        text += f". {CANNOT_BE_SAVED}{ADVICE}"
    return text + "."


def screened_original(facts: TargetFacts, records: Sequence[TrialRecord]) -> MeasuredVariant:
    """Return the original without finals: its latency is the median beside the variants, or else the profiles' mean."""
    beside = [r.baseline_latency_ms for r in records if r.baseline_latency_ms]
    profiled = [profile.total_s * 1e3 for profile, count in facts.profiles for _ in range(count)]
    latency_ms = statistics.median(beside) if beside else statistics.fmean(profiled)
    return MeasuredVariant(
        latency_ms=latency_ms,
        throughput_per_s=facts.num_samples * 1e3 / latency_ms,
        peak_bytes=0,
        size_bytes=facts.original_bytes,
        quality=facts.score,
        verdict="screened",
    )
