"""Say what was found out about a training run, in sentences."""

from collections.abc import Sequence

from whet.figures import num_bytes
from whet.tuner.goal import Goal, ranked
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
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


def no_gain_sentence(facts: TrainingFacts, records: Sequence[TrialRecord]) -> str:
    """Return why the original stays."""
    best = next(iter(ranked(Goal("throughput"), records)), None)
    if best is None:
        return "No recipe trains as the original does and is faster. The original stays."
    shown = f"the best trial, {best.label}, showed {best.speedup or 1:.2f}x"
    return f"Nothing is proved to be faster; {shown}. The original stays."
