"""Prove that a recipe trains as the original does, by its gradients, first updates and data."""

from collections.abc import Sequence

from torch import Tensor

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.techniques.proof import gradients
from whet.techniques.proof.first_update import first_gradients, judged_first
from whet.techniques.proof.updates import UpdateProof, prove_updates
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness
from whet.tuner.records import TrainingEvidence
from whet.tuner.training.facts import MOVED, ORIGINAL, REFERENCE, KnownTraining
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches
from whet.tuner.training.plan_techniques import TRAINED_TABLE, of_loop
from whet.tuner.training.shared_training import RowsTrainer


class TrialProof:
    """Hold a recipe's training against the original's.

    It is made before the recipe is applied: dropout has to drop the same numbers before and after.
    """

    def __init__(self, workload: TrainingWorkload, steps: Sequence[Step], known: KnownTraining) -> None:
        self._workload = workload
        self._known = known
        self._exactness = exactness_of(steps)
        own = of_loop(steps)
        keeps_dropout = own and all(TRAINING_TABLE[step.technique].keeps_dropout for step in own)
        self._dropped = self._with_dropout() if keeps_dropout else {}

    def judge(self, trainer: Trainer) -> tuple[str, TrainingEvidence]:
        """Return what `disproved` returns for the recipe's trainer, or that its dropout drops other numbers."""
        dropped = self._with_dropout() if self._dropped else {}
        why, evidence = disproved(self._workload, trainer, self._exactness, self._known)
        return why or (gradients.other_dropout(dropped, self._dropped) if self._dropped else ""), evidence

    def _with_dropout(self) -> dict[str, Tensor]:
        """Return gradients of one batch with dropout on, as the model is now; empty where it drops nothing."""
        if not gradients.drops_something(self._workload.model):
            return {}
        model, batches, seed = self._workload.model.train(), first_batches(self._workload, 1), self._workload.seed
        return gradients.gradients_of(model, self._workload.loss, batches, seed=seed, drops=True)


def disproved(
    workload: TrainingWorkload, trainer: Trainer, exactness: Exactness, known: KnownTraining
) -> tuple[str, TrainingEvidence]:
    """Hold the gradients, the first updates and the data of a changed loop against the original's.

    Args:
        trainer: The changed loop, before its first step.

    Returns:
        Why it is another training, "" where nothing says so; and the evidence.
    """
    batches = first_batches(workload, gradients.NUM_BATCHES)
    shared = trainer if isinstance(trainer, RowsTrainer) else None
    agreed = str if shared is None else shared.agreed  # what one process objects to, all refuse
    backward = None if shared is None else shared.backward
    found = gradients.gradients_of(trainer.model, workload.loss, batches, seed=workload.seed, backward=backward)
    original, reference, moved = (gradients.read(known.directory / name) for name in (ORIGINAL, REFERENCE, MOVED))
    proof = gradients.judged(found, original, reference, exactness, moved)
    evidence = TrainingEvidence(gradients=proof)
    if why := agreed("" if proof.is_same else proof.words):
        return why, evidence
    if exactness is not Exactness.OTHER:
        with first_gradients(trainer) as seen:
            updates = prove_updates(workload, trainer)
        given = judged_first(seen, found, workload, original, reference, exactness, moved)
        if given is not None and not given.is_same:
            words = f"the first update is given {given.words}"
            updates = UpdateProof(is_same=False, words=words, error=given.error, parameter=given.parameter)
        evidence = TrainingEvidence(gradients=proof, updates=updates)
        if why := agreed("" if updates.is_same else updates.words):
            return why, evidence
    return agreed(_other_batches(trainer, known)), evidence


def exactness_of(steps: Sequence[Step]) -> Exactness:
    """Return the weakest promise of a recipe's techniques."""
    order = list(Exactness)
    techniques = [(TRAINED_TABLE[step.technique], step) for step in steps]
    kinds = [technique.promise(technique.options(**step.options)) for technique, step in techniques]
    return max(kinds, key=order.index, default=Exactness.EXACT)


def _other_batches(trainer: Trainer, known: KnownTraining) -> str:
    """Return what is wrong with the data that a changed loop trains on; "" where it is the original's."""
    found = digests(trainer.first_batches(NUM_DIGESTS))
    if found != known.batches:
        return f"other data: batch {_first_difference(found, known.batches)} of a pass is not the original's"
    found = digests(trainer.first_batches(NUM_DIGESTS, later=1))
    if found != known.next_batches:
        where = _first_difference(found, known.next_batches)
        return f"other data: batch {where} of the second pass is not the original's"
    return ""


def _first_difference(found: Sequence[str], known: Sequence[str]) -> int:
    """Return the number of the first digest that differs, from 1."""
    same = (i for i, (a, b) in enumerate(zip(found, known, strict=False)) if a != b)
    return next(same, min(len(found), len(known))) + 1
