"""Judge whether a script with a recipe trains as the script does: its first gradients and updates, and its losses.

The reference is the script itself. How far rounding alone moves it is known from a run of the script on one thread,
which adds in another order, and from runs whose parameters were moved by rounding errors before the first step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whet.measure.evidence import Losses, agreement_between
from whet.scripts.injection.command import ScriptOutcome
from whet.scripts.injection.messages import GRADIENTS, ScriptRecord
from whet.techniques.proof import gradients
from whet.techniques.proof.gradients import GradientProof
from whet.techniques.proof.sensitivity import BFLOAT16, SUMS, distances_of
from whet.techniques.training_technique import Exactness
from whet.tuner.records import TrainingEvidence

SAME_LOSS = 1e-4  # relative: sums in another order move a loss of the first steps by less
_SPREAD = 3.0  # times the difference that another number of threads makes
_AGAINST = "the script's own"


@dataclass(frozen=True)
class Original:
    """Hold what is known of the script as it is, with its dropout off.

    Attributes:
        other: A run on one thread; the same run where the machine has one core.
        run_moved: Makes runs with parameters that are moved so far (proof/sensitivity.py). They are made once a
            recipe differs by more than the same sums in another order do.
    """

    run: ScriptOutcome
    other: ScriptOutcome
    run_moved: Callable[[float], Sequence[ScriptOutcome]] = lambda size: ()
    _moves: dict[float, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def losses(self) -> list[float | None]:
        return _record(self.run).losses

    def moves(self, size: float) -> dict[str, Tensor]:
        """Return how far parameters that are moved so far move the first gradients; the worst run counts."""
        if size not in self._moves:
            own, found = _of([0], gradients.read(self.run.directory / GRADIENTS)), dict[str, Tensor]()
            for outcome in self.run_moved(size):
                moved = distances_of(_of([0], gradients.read(outcome.directory / GRADIENTS)), own, size)
                found |= {name: torch.maximum(value, found.get(name, value)) for name, value in moved.items()}
            self._moves[size] = found
        return self._moves[size]

    @property
    def loss_spread(self) -> float:
        """Return the largest relative difference that rounding alone makes to a loss."""
        return max((gap for gap in relative_gaps(self.losses, _record(self.other).losses)), default=0.0)


def judge(original: Original, found: ScriptOutcome, exactness: Exactness) -> tuple[str, TrainingEvidence]:
    """Return why a run whose recipe promises `exactness` does not train as the script does, or "", and the evidence."""
    record, own = _record(found), _record(original.run)
    proof = _gradients(original, found, exactness)
    evidence = TrainingEvidence(gradients=proof, updates=record.updates)
    if not proof.is_same:
        return proof.words, evidence
    if record.updates is not None and record.updates.is_same is False:
        return record.updates.words, evidence
    if any(a != b for a, b in zip(own.learning_rates, record.learning_rates, strict=False)):
        return "other learning rates than the script's own", evidence
    return _other_losses(original, record.losses, exactness), evidence


def first_not_finite(losses: Sequence[float | None]) -> int | None:
    """Return the number of the first step, from 1 on, whose loss is NaN or infinite; None where all are finite."""
    return next((i for i, loss in enumerate(losses, 1) if loss is not None and not math.isfinite(loss)), None)


def relative_gaps(old: Sequence[float | None], new: Sequence[float | None]) -> list[float]:
    """Return the differences of the losses that both have, relative to the old ones' mean size."""
    both = [(a, b) for a, b in zip(old, new, strict=False) if a is not None and b is not None]
    scale = sum(abs(a) for a, _ in both) / len(both) if both else 1.0
    return [abs(a - b) / (scale or 1.0) for a, b in both]


def _gradients(original: Original, found: ScriptOutcome, exactness: Exactness) -> GradientProof:
    """Judge the first step as the techniques promise, and, for exact ones, later steps by direction and length.

    The parameters of later steps differ already, since an optimiser such as Adam turns rounding into whole updates.
    """
    own, other, new = (
        gradients.read(outcome.directory / GRADIENTS) for outcome in (original.run, original.other, found)
    )

    def judged(steps: Sequence[int], promise: Exactness) -> GradientProof:
        sides = (_of(steps, new), _of(steps, other), _of(steps, own))
        proof = gradients.judged(*sides, promise, against=_AGAINST)
        if proof.is_same or not _may_be_compared(sides[0], sides[2]):
            return proof
        moves = original.moves(SUMS if promise is Exactness.EXACT else BFLOAT16)
        return gradients.judged(*sides, promise, moves, against=_AGAINST)

    first = judged([0], exactness)
    if not first.is_same or exactness is not Exactness.EXACT:
        return first
    later = judged([1, 2], Exactness.ROUNDED)
    return first if later.is_same else later


def _may_be_compared(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Return whether both sides have the same gradients, and finite ones: else no rounding explains a difference."""
    return found.keys() == own.keys() and all(bool(torch.isfinite(gradient).all()) for gradient in found.values())


def _of(steps: Sequence[int], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of some steps."""
    return {key: value for key, value in found.items() if int(key.removeprefix("norm.").partition(".")[0]) in steps}


def _other_losses(original: Original, losses: Sequence[float | None], exactness: Exactness) -> str:
    """Return how the losses differ from the original's beyond rounding; "" where they do not."""
    if exactness is not Exactness.EXACT:
        agreement = agreement_between(Losses(by_step=tuple(original.losses)), Losses(by_step=tuple(losses)))
        return "" if agreement.is_same else agreement.words
    allowed = max(SAME_LOSS, _SPREAD * original.loss_spread)
    gaps = relative_gaps(original.losses, losses)
    worst = max(range(len(gaps)), key=gaps.__getitem__, default=0)
    if not gaps or gaps[worst] <= allowed:
        return ""
    return f"another loss: {gaps[worst]:.1e} apart in step {worst + 1}, and {allowed:.1e} is allowed"


def _record(outcome: ScriptOutcome) -> ScriptRecord:
    assert outcome.record is not None
    return outcome.record
