"""Say what the proof of a tuned stream comes to: a verdict, with its sentence."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from whet.comparison.claim import Claim, Verdict
from whet.figures import digits, duration, percent
from whet.measure.quiet import Patience
from whet.measure.stats import mean_interval
from whet.stream_tuner.finals import seconds_per_frame
from whet.stream_tuner.quality import Change
from whet.stream_tuner.result import Point, StreamTuning, Word
from whet.streamer.report import StreamReport


def with_times(original: Point, best: Point, claim: Claim | None) -> tuple[Point, Point]:
    """Return the two points with the times of the comparison."""
    if claim is None or claim.ratio is None or claim.ci95 is None:
        return original, best
    return (
        dataclasses.replace(original, s_per_frame=seconds_per_frame(claim.old_s)),
        dataclasses.replace(
            best,
            s_per_frame=seconds_per_frame(claim.new_s),
            speedup=claim.ratio,
            speedup_ci95=claim.ci95,
            p_value=claim.p_value,
            noise=claim.noise,
        ),
    )


def by_speed(
    original: Point, best: Point, claim: Claim | None, moved: Change, patience: Patience, common: Mapping[str, Any]
) -> StreamTuning:
    """Return the result where the most frames of the same quality were looked for.

    Args:
        original: The original, without times.
        best: What the search chose, without times.
        claim: The comparison of their times; None where they are the same.
        moved: The quality of the best beside the original's, on clips that the search has not seen.
        patience: What the machine did meanwhile.
        common: Further fields of the result.
    """
    original, best = with_times(original, best, claim)
    verdict, sentence = _speed_verdict(best, claim, moved)
    return _result(original, best, verdict, sentence, claim, common, objective="fps", budget_s=None)


def _speed_verdict(best: Point, claim: Claim | None, moved: Change) -> tuple[Word, str]:
    if claim is None:
        return "no-gain", "Nothing that was tried is faster at the same quality; the stream stays as it is."
    if claim.failure:
        return "failed", f"The comparison failed: {claim.failure}"
    low, high = best.speedup_ci95
    ratio = f"{digits(best.speedup)}x (95 % interval {digits(low)} to {digits(high)})"
    if claim.verdict is Verdict.INCONCLUSIVE:
        why = claim.busy or claim.doubt or "there were too few quiet pairs"
        return "inconclusive", f"Whether the stream became faster is open: {why}."
    if claim.verdict is Verdict.FAIL:
        return "no-gain", f"The best that was found is {ratio} as fast, which is no gain; the stream stays as it is."
    if not moved.is_same:
        lost = "; ".join(moved.reasons)
        return "no-gain", f"It is {ratio} as fast, but on unseen clips the quality is lower: {lost}. It is not kept."
    return "gain", f"The stream answers {ratio} as many frames at the same quality: {best.label}."


def by_budget(
    original: Point,
    best: Point,
    claim: Claim | None,
    runs: Sequence[StreamReport],
    budget_s: float,
    common: Mapping[str, Any],
) -> StreamTuning:
    """Return the result where the best quality within a budget was looked for.

    Args:
        original: The original, without times.
        best: What the search chose, without times.
        claim: The comparison of their times; None where they are the same.
        runs: The report of a run of each under the budget.
        budget_s: Seconds that a frame may take.
        common: Further fields of the result.
    """
    original, best = with_times(original, best, claim)
    original, best = (
        dataclasses.replace(
            point, p99_s=run.frame.p99 if run.frame else None, budget=run.verdict, s_per_frame=_seconds(point, run)
        )
        for point, run in zip((original, best), runs, strict=True)
    )
    verdict, sentence = _budget_verdict(original, best, budget_s, runs)
    return _result(original, best, verdict, sentence, claim, common, objective="quality", budget_s=budget_s)


def _seconds(point: Point, run: StreamReport) -> float | None:
    if point.s_per_frame is not None:
        return point.s_per_frame
    return run.frame.p50 if run.frame else None


def _budget_verdict(original: Point, best: Point, budget_s: float, runs: Sequence[StreamReport]) -> tuple[Word, str]:
    budget = duration(budget_s)
    if best.budget == "inconclusive":
        return "inconclusive", f"Whether the budget of {budget} holds is open, as the machine was busy: {runs[1].busy}."
    if best.budget != "held":
        late = percent(runs[1].late_share)
        return (
            "no-gain",
            f"The best that was found misses the budget of {budget}: P99 {duration(best.p99_s)}, {late} late.",
        )
    assert original.figures is not None and best.figures is not None
    gained = [a - b for a, b in zip(best.figures.ssim_by_frame, original.figures.ssim_by_frame, strict=True)]
    low, high = mean_interval(gained) if len(gained) > 1 else (gained[0], gained[0])
    better = f"similarity {best.figures.ssim:.3f} beside {original.figures.ssim:.3f}"
    if original.budget == "held" and low <= 0:
        word = "no better" if high >= 0 else "worse"
        return "no-gain", f"The original keeps the budget of {budget}, and what was found is {word}: {better}."
    was = "keeps it too" if original.budget == "held" else "misses it" if original.budget == "missed" else "is open"
    found = f"P99 {duration(best.p99_s)}; {better}"
    return "gain", f"{best.label} keeps the budget of {budget}, and the original {was}: {found}."


def _result(
    original: Point,
    best: Point,
    verdict: Word,
    sentence: str,
    claim: Claim | None,
    common: Mapping[str, Any],
    **fields: Any,
) -> StreamTuning:
    kept = best if verdict == "gain" else original
    rejected = () if verdict == "gain" or claim is None else ((best, sentence),)
    return StreamTuning(
        verdict=verdict,
        sentence=sentence,
        original=original,
        best=kept,
        rejected=rejected,
        busy="" if claim is None else claim.busy,
        **common,
        **fields,
    )
