"""Say what was found out about a training run, in sentences."""

import shlex
from collections.abc import Mapping

from whet.tuner import figures
from whet.tuner.result import Diagnosed, LargerBatch, MeasuredVariant, Result
from whet.ui.figures import num_bytes, percent


def gain_sentence(unit: str, baseline: MeasuredVariant, best: MeasuredVariant) -> str:
    """Return what the best recipe gains; `unit` is what the throughput counts."""
    low, high = best.speedup_ci95
    new, old = figures.rate(best.throughput_per_s), figures.rate(baseline.throughput_per_s)
    gain = f"{best.label}: {best.speedup:.2f}x ({low:.2f}–{high:.2f}), {new} in place of {old} {unit} a second"
    if best.peak_bytes and baseline.peak_bytes:
        gain += f", {num_bytes(best.peak_bytes)} in place of {num_bytes(baseline.peak_bytes)}"
    return f"{gain}."


def diagnosed(step_s: float, shares: Mapping[str, float], *, share_of_limit: float | None) -> Diagnosed:
    ranked = sorted(shares, key=lambda name: -shares[name])
    told = ", ".join(f"{percent(shares[name], decimals=0)} {name}" for name in ranked if shares[name] >= 0.02)
    sentence = f"A step takes {step_s * 1e3:.0f} ms: {told}."
    return Diagnosed(sentence=sentence, bound=ranked[0], shares=dict(shares), share_of_limit=share_of_limit)


def run_command(result: Result) -> str:
    return f"whet run --recipe {shlex.quote(result.out)} -- {result.target}"


def proof_of(point: MeasuredVariant) -> str:
    """Return what is known about a recipe's gradients, updates and losses, in one sentence."""
    told = "; ".join(words for name, words in proofs_of(point) if name != "data")
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def proofs_of(point: MeasuredVariant) -> list[tuple[str, str]]:
    """Return what is known of a recipe's gradients, updates, data and losses: a name and words for each."""
    evidence, told = point.training, []
    if evidence is not None and evidence.gradients is not None:
        told.append(("gradients", evidence.gradients.words))
        updates = "another optimiser: its updates are other ones, and the loss alone can tell"
        told.append(("updates", evidence.updates.words if evidence.updates is not None else updates))
        told.append(("data", "the first batches of a pass are the original's"))
    if point.losses is not None:
        told.append((point.losses.score, point.losses.words))
    return told


def batch_sentences(result: Result) -> list[str]:
    return [_batch_sentence(one, result.unit) for one in result.larger_batches]


def _batch_sentence(one: LargerBatch, unit: str) -> str:
    begins = f"A batch {one.factor} times as large"
    if one.failure:
        return f"{begins} failed: {one.failure}."
    if one.speedup is None or one.speedup_ci95 is None:
        return f"{begins} was not measured: the budget ended."
    low, high = one.speedup_ci95
    told = f"{begins}: {one.speedup:.2f}x ({low:.2f}–{high:.2f}), {one.throughput_per_s:,.0f} {unit} a second"
    told += f", {num_bytes(one.peak_bytes)}"
    if one.losses is None:
        return f"{told}; {'its loss was not compared' if one.verdict == 'pass' else 'no proof that it is faster'}."
    rate = f"with {one.learning_rate_factor:.3g} times the learning rate"
    return f"{told}; after equal numbers of samples, {rate}, {one.losses.words}."
