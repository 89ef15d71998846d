"""Say what was found out about a training run, in sentences."""

from collections.abc import Sequence

from whet.figures import num_bytes
from whet.tuner.goal import Goal, ranked
from whet.tuner.records import TrialRecord
from whet.tuner.result import LargerBatch, MeasuredVariant, Result
from whet.tuner.training.facts import TrainingFacts


def gain_sentence(goal: Goal, facts: TrainingFacts, baseline: MeasuredVariant, best: MeasuredVariant) -> str:
    """Return what the best recipe gains, and what proves that it is the same training."""
    low, high = best.speedup_ci95
    times = f"{best.throughput_per_s:,.0f} in place of {baseline.throughput_per_s:,.0f} {facts.unit} a second"
    gain = f"{best.label}: {best.speedup:.2f}x ({low:.2f}–{high:.2f}), {times}"
    if best.peak_bytes and baseline.peak_bytes:
        gain += f", {num_bytes(best.peak_bytes)} in place of {num_bytes(baseline.peak_bytes)}"
    return f"{gain}."


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
    """Return what each larger batch gave, in one sentence for each."""
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


def no_gain_sentence(goal: Goal, records: Sequence[TrialRecord]) -> str:
    """Return why the original stays."""
    is_memory = goal.objective == "memory"
    best = next(iter(ranked(goal if is_memory else Goal("throughput"), records)), None)
    if best is None and is_memory:
        return "No recipe trains as the original does and needs less memory in the time allowed. The original stays."
    if best is None:
        return "No recipe trains as the original does and is faster. The original stays."
    if is_memory:
        shown = f"the best trial, {best.label}, took {num_bytes(best.peak_bytes or 0)}"
        return f"Nothing is proved to need less memory in the time allowed; {shown}. The original stays."
    shown = f"the best trial, {best.label}, showed {best.speedup or 1:.2f}x"
    return f"Nothing is proved to be faster; {shown}. The original stays."
