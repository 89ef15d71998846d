"""The whole proof of a trial, beside its first step: data of later passes, what the first update is given, rounding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from planted_faults import FAULTS, Fault
from tiny_training import VOCAB, TinyLM, changed_trainer, image_workload, tiny_workload
from torch import Tensor, nn

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.techniques.proof.gradients import GradientProof, gradients_of, judged, reference_gradients
from whet.techniques.proof.sensitivity import sensitivity
from whet.techniques.training_technique import Exactness
from whet.tuner.training.examination import write_gradients
from whet.tuner.training.facts import KnownTraining
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches
from whet.tuner.training.proof import TrialProof, disproved
from whet.workloads.shuffled import Shuffled


def shuffled_workload() -> TrainingWorkload:
    windows = torch.randint(0, VOCAB, (32, 17), generator=torch.Generator().manual_seed(1))
    return tiny_workload(batches=Shuffled(32, 4, lambda rows: windows[rows]))


def verdict(fault: Fault, exactness: Exactness, directory: Path) -> str:
    """Return why a trial rejects a planted fault; "" where it finds none."""
    original = shuffled_workload()
    first, later = (digests(first_batches(original, NUM_DIGESTS, later=later)) for later in (0, 1))
    write_gradients(original, directory)
    known = KnownTraining(target="", directory=directory, batches=first, next_batches=later)
    workload = shuffled_workload()
    workload = replace(workload, loss=fault.loss(workload.loss))
    return disproved(workload, changed_trainer(workload, fault.change), exactness, known)[0]


def dropping_workload() -> TrainingWorkload:
    torch.manual_seed(0)
    return tiny_workload(model=TinyLM(dropout=0.3), clip_norm=None)


@pytest.mark.parametrize("rate", [0.3, 0.0, 0.1])
def test_a_recipe_that_changes_dropout_is_found(rate: float, tmp_path: Path) -> None:
    original = dropping_workload()
    first, later = (digests(first_batches(original, NUM_DIGESTS, later=later)) for later in (0, 1))
    write_gradients(original, tmp_path)
    known = KnownTraining(target="", directory=tmp_path, batches=first, next_batches=later)
    workload = dropping_workload()
    proof = TrialProof(workload, [Step(technique="checkpointing")], known)
    for module in workload.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
    why = proof.judge(changed_trainer(workload, lambda parts: parts))[0]
    assert why == "" if rate == 0.3 else "drop" in why


@pytest.mark.parametrize("exactness", [Exactness.EXACT, Exactness.ROUNDED])
def test_what_is_not_changed_passes(exactness: Exactness, tmp_path: Path) -> None:
    assert verdict(Fault(), exactness, tmp_path) == ""


@pytest.mark.parametrize("exactness", [Exactness.EXACT, Exactness.ROUNDED])
@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(name: str, exactness: Exactness, tmp_path: Path) -> None:
    assert verdict(FAULTS[name], exactness, tmp_path)


def test_the_words_say_where_a_fault_is(tmp_path: Path) -> None:
    found = verdict(FAULTS["a data order that repeats in each pass"], Exactness.EXACT, tmp_path)
    assert found == "other data: batch 1 of the second pass is not the original's"
    found = verdict(FAULTS["gradients doubled before the update"], Exactness.EXACT, tmp_path)
    assert found.startswith("the first update is given other gradients: the norm of embedding.weight's is 2.0000 times")


class _NextToZero(nn.Module):
    """Have inputs of a ReLU so near 0 that rounding decides whether they count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.bias.copy_(1e-7 - self.first.weight.sum(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(F.relu(self.first(x)))
        return logits


def test_gradients_that_jump_under_rounding_are_allowed_to() -> None:
    torch.manual_seed(0)
    model = _NextToZero().train()
    batches = [(torch.ones(4, 8), torch.tensor([0, 1, 2, 3])) for _ in range(3)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    reference = reference_gradients(model, loss, batches, seed=0)
    original = gradients_of(model, loss, batches, seed=0)
    moved = sensitivity(model, loss, batches, reference, seed=0)
    again = gradients_of(model, loss, batches, seed=0)
    assert all(torch.equal(again[name], original[name]) for name in original), "the parameters are put back"

    def proof(found: dict[str, Tensor]) -> GradientProof:
        return judged(found, original, reference, Exactness.EXACT, moved)

    assert proof(original).is_same
    assert moved["error.last.bias"] < 1e-3 < moved["error.first.bias"], "one layer jumps, the other does not"
    jumped = {**original, "0.first.bias": 1.05 * original["0.first.bias"]}
    assert not judged(jumped, original, reference, Exactness.EXACT).is_same
    assert proof(jumped).is_same
    assert not proof({name: 1.01 * value for name, value in original.items()}).is_same, "the last layer tells"


def test_a_smooth_network_is_allowed_hardly_more() -> None:
    workload = tiny_workload()
    batches = list(workload.batches)[:3]
    workload.model.train()
    reference = reference_gradients(workload.model, workload.loss, batches, seed=0)
    moved = sensitivity(workload.model, workload.loss, batches, reference, seed=0)
    assert max(float(value) for name, value in moved.items() if name.startswith("error.")) < 1e-4
    assert max(float(value) for name, value in moved.items() if name.startswith("bend.")) < 1e-3


def test_statistics_of_batch_norms_are_put_back() -> None:
    workload = image_workload()
    workload.model.train()
    before = {name: value.clone() for name, value in workload.model.state_dict().items()}
    batches = list(workload.batches)[:1]
    reference = reference_gradients(workload.model, workload.loss, batches, seed=0)
    sensitivity(workload.model, workload.loss, batches, reference, seed=0)
    for name, value in workload.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
