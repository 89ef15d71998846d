"""Say what a tuning run found in plain words: "7.4x faster, same accuracy, a quarter of the size".

The terminal and report.html both take these words from `headline`. It uses nothing but the figures of the result, so it
also works for a result.json of an earlier version.
"""

from dataclasses import dataclass
from fractions import Fraction

from whet.tuner import figures
from whet.tuner.result import NO_VERDICT, MeasuredVariant, Result

UNFAIR_MEMORY = "the original's memory holds what its own code builds beside the model, which cannot be saved without"
CANNOT_BE_SAVED = "It cannot be saved: "

_SAME = 0.0005  # a change of the quality below this fraction is called none, where its interval allows that
_LESS = 0.01  # a size that differs by less than this fraction is called the same
_MORE_MEMORY = 0.1  # a peak that grows by this fraction belongs into the headline, whatever was asked for
_NEAR, _ABOUT = 0.02, 0.08  # how far a share may lie from a fraction to be called by it, and "about" it
_FRACTIONS = {
    Fraction(3, 4): "three quarters", Fraction(2, 3): "two thirds", Fraction(1, 2): "half", Fraction(1, 3): "a third",
    Fraction(1, 4): "a quarter", Fraction(1, 5): "a fifth", Fraction(1, 8): "an eighth", Fraction(1, 10): "a tenth",
}  # fmt: skip
_PREFIXES = ("No gain: ", NO_VERDICT, "Inconclusive: ", "the time was up before anything was proved; ")
_LEFT_OUT = " is left out: "  # of a training's recipe that is faster or smaller, but not proved or not allowed
_STAYS = ("; the original stays", " The original stays.")
_GO_ON = " On a quiet machine, --resume goes on from here."


@dataclass(frozen=True)
class Headline:
    """Hold the verdict in words.

    Attributes:
        words: The headline, without a full stop.
        details: By what a gain came and what it costs, or the reason why there is none, as sentences. The figures of a
            gain stand beside it, in the table or the tiles.
    """

    words: str
    details: str


def headline(result: Result) -> Headline:
    """Say in words what a run found. Only the verdict "gain" is ever called one."""
    if result.verdict == "gain" and result.objective == "quality":
        return Headline(result.sentence.removesuffix("."), "")
    if result.verdict == "gain":
        return Headline(", ".join(_gained(result)), _how(result))
    reason = _reason(result.sentence)
    if result.is_disturbed:  # how to go on is said last, with the whole command
        reason = f"{reason.removesuffix(_GO_ON)} {_found_so_far(result)}"
    return Headline(_not_gained(result), reason)


def _how(result: Result) -> str:
    """Return by which recipe a gain came, and what its figures do not say."""
    told = [f"By {result.best.label}."]
    if UNFAIR_MEMORY in result.sentence:
        told.append(f"{figures.capital(UNFAIR_MEMORY)}.")
    told += [f"{one}." for one in result.sentence.rstrip(".").split(". ") if _LEFT_OUT in one]
    if result.best.fixed_batch is not None:
        told.append(f"It takes batches of {result.best.fixed_batch} only.")
    if CANNOT_BE_SAVED in result.sentence:
        told.append(CANNOT_BE_SAVED + result.sentence.partition(CANNOT_BE_SAVED)[2])
    return " ".join(told)


def _found_so_far(result: Result) -> str:
    """Say what a run that other programs disturbed has found all the same."""
    quiet = [record for record in result.trials if record.status == "done" and not record.busy and record.speedup]
    if not quiet:
        return "No trial ran undisturbed, so nothing is known yet."
    best = max(quiet, key=lambda record: record.speedup or 0.0)
    trials = "One trial" if len(quiet) == 1 else f"{len(quiet)} trials"
    return (
        f"{trials} ran undisturbed; the fastest, {best.label}, was {figures.ratio(best.speedup)} as fast as the "
        "original in the screening, which proves nothing yet."
    )


def _not_gained(result: Result) -> str:
    if result.verdict == "no-gain":
        return "No gain: the original stays"
    if result.verdict == "failed":
        return "Failed: nothing could be measured, and the original stays"
    if result.needed_s is not None:  # too small a budget is the cause, whatever disturbed the measurements
        return "Inconclusive: the time was up before anything was proved, and the original stays"
    if result.busy:
        return "Inconclusive: the machine was busy, and the original stays"
    return "Inconclusive: the measurements do not settle it, and the original stays"


def _reason(sentence: str) -> str:
    """Return a verdict's sentence without what the headline says already."""
    for prefix in _PREFIXES:
        sentence = sentence.removeprefix(prefix)
    for words in _STAYS:
        sentence = sentence.replace(words, "")
    return figures.capital(sentence)


def _gained(result: Result) -> list[str]:
    """Return the parts of a gain's headline: what was asked for first, then the rest."""
    best, baseline = result.best, result.baseline
    speed = speed_words(best, result.objective)
    quality = _same_training(best) if result.is_of_training else quality_words(result)
    size = share_words(best.size_bytes, baseline.size_bytes, "size")
    memory = share_words(best.peak_bytes, baseline.peak_bytes, "memory")
    if result.objective == "size":
        parts = [size, quality, speed]
    elif result.objective == "memory":
        parts = [memory, quality, speed, size]
    else:
        parts = [speed, quality, size]
    if result.objective != "memory" and best.peak_bytes > (1 + _MORE_MEMORY) * baseline.peak_bytes > 0:
        parts.append(memory)
    return [part for part in parts if part]


def _same_training(point: MeasuredVariant) -> str:
    return "same gradients and updates" if point.losses is None else f"same {figures.one_line(point.losses.score)}"


def speed_words(point: MeasuredVariant, objective: str = "latency") -> str:
    """Say how the speed compares with the original's; "" if the final comparison did not measure it."""
    if point.verdict == "pass":
        factor = times(point.speedup)
        return f"{factor} the throughput" if objective == "throughput" else f"{factor} faster"
    if point.verdict == "fail" and 0 < point.speedup_ci95[1] < 1:
        return f"{times(1 / point.speedup)} slower"
    return "not shown to be faster" if point.verdict in ("fail", "inconclusive") else ""


def quality_words(result: Result) -> str:
    """Say how the quality compares with the original's: the same, or by how much it is worse or better.

    It is called the same if the drop is below 0.05% and its interval, if there is one, contains zero.
    """
    best, baseline, name = result.best, result.baseline, figures.one_line(result.quality_name)
    if baseline.quality is None or best.quality is None:
        if best.agreement is None:
            return "quality not measured"
        return f"outputs agree with the original's to cosine {figures.cosine(best.agreement.cosine)}"
    change = best.change
    worse = baseline.quality - best.quality if result.higher_is_better else best.quality - baseline.quality
    drop = change.drop if change is not None else worse / (abs(baseline.quality) or 1.0)
    limit = _percent(result.max_drop)
    doubt = "" if change is None or change.is_shown else f"too few samples to show it stays within {limit}"
    if abs(drop) <= min(_SAME, result.max_drop / 4) and (change is None or change.ci95[0] <= 0 <= change.ci95[1]):
        return f"same {name}" + (f" ({doubt})" if doubt else "")
    direction = "lower" if (drop > 0) == result.higher_is_better else "higher"
    notes = [f"limit {limit}"] if drop > 0 else []
    notes += [doubt] if doubt else []
    return f"{name} {_percent(abs(drop))} {direction}" + (f" ({'; '.join(notes)})" if notes else "")


def share_words(after: int, before: int, noun: str) -> str:
    """Say what share of the original's bytes is left: "a quarter of the size"; "" if one of the two is unknown."""
    if not (after > 0 and before > 0):
        return ""
    share = after / before
    if abs(share - 1) <= _LESS:
        return f"same {noun}"
    if share >= 2:
        return f"{times(share)} the {noun}"
    if share > 1:
        return f"{_percent(share - 1)} more {noun}" if noun == "memory" else f"{_percent(share - 1)} larger"
    near = min(_FRACTIONS, key=lambda fraction: abs(share / fraction - 1))
    off = abs(share / near - 1)
    if off <= _ABOUT:
        about, of = "about " if off > _NEAR else "", "" if near == Fraction(1, 2) else "of "
        return f"{about}{_FRACTIONS[near]} {of}the {noun}"
    if share > 0.5:
        return f"{_percent(1 - share)} less memory" if noun == "memory" else f"{_percent(1 - share)} smaller"
    return f"{_percent(share)} of the {noun}"


def times(factor: float) -> str:
    """Return a factor of at least 1 as people say it: 12x, 7.4x, 1.27x."""
    scale = 1 if factor >= 9.95 else 10 if factor >= 1.995 else 100
    number = round(factor * scale)
    return f"{number / scale:,g}x" if number < 1000 * scale else f"{number // scale:,}x"


def _percent(fraction: float) -> str:
    """Return a fraction in percent, briefly: 0.4%, 0.08%, 12%."""
    value = 100 * fraction
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.{2 if value >= 0.0995 else 1}g}%"
