"""An inference workload and a training workload through one `compare`, in real processes."""

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import whet
from whet.comparison.claim import Claim
from whet.comparison.stopping import Fixed
from whet.comparison.targets import compare, opened
from whet.comparison.variant import Variant
from whet.errors import OptionError, TargetError

pytestmark = pytest.mark.usefixtures("forked")

FEW = Fixed(most=2, least=1, lost_after=0)  # pairs: what is tested here is the way there and back

TRAINING = """
import time
import torch
from torch import nn
from whet import TrainingWorkload


def workload(wait_s=0.02, rate=0.1):  # long beside what a busy machine adds to a step
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
    batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(7)]

    def loss(model, batch):
        time.sleep(wait_s)
        x, y = batch
        return (model(x) - y).square().mean()

    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=rate)

    return TrainingWorkload(model=model, loss=loss, optimizer=optimizer, batches=batches, num_samples=4)


def fast():
    return workload(wait_s=0.005)


def other():
    return workload(rate=0.2)


def with_workers():
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
    first = workload(wait_s=0.0)
    return TrainingWorkload(model=first.model, loss=first.loss, optimizer=first.optimizer, batches=loader)


def broken():
    raise ValueError("no data")
"""


@pytest.fixture
def training(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return str(path)


class Waits(nn.Module):
    def __init__(self, wait_s: float, factor: float = 2.0) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.wait_s)
        return x * self.factor


def workload(wait_s: float, factor: float = 2.0) -> whet.InferenceWorkload:
    return whet.InferenceWorkload(model=Waits(wait_s, factor).eval(), inputs=[torch.randn(2, 3), torch.randn(2, 3)])


@pytest.mark.parametrize("schedule", ["turns", "rounds", "abba"])
def test_training_steps_are_compared(training: str, schedule: str) -> None:
    claim = compare(f"{training}:workload", f"{training}:fast", schedule=schedule, stop=FEW, budget_s=0.3)
    _is_faster(claim)
    assert claim.agreement is not None
    assert claim.agreement.is_same
    assert claim.agreement.distance == 0.0  # the same seed, the same batches in the same order: equal losses
    assert claim.agreement.words.startswith("same loss over ")
    assert claim.pairs[0][0].num_samples == 4


def test_a_training_that_learns_something_else_does_not_agree(training: str) -> None:
    claim = compare(f"{training}:workload", f"{training}:other", stop=FEW, budget_s=0.05)
    assert claim.agreement is not None
    assert not claim.agreement.is_same
    assert "another loss" in claim.agreement.words


@pytest.mark.parametrize("schedule", ["turns", "rounds"])
def test_calls_of_a_model_in_memory_are_compared(schedule: str) -> None:
    torch.manual_seed(0)
    old = workload(0.02)
    torch.manual_seed(0)
    claim = whet.compare(old, workload(0.005), schedule=schedule, stop=FEW, budget_s=0.3)
    _is_faster(claim)
    assert claim.agreement is not None
    assert claim.agreement.is_same


def test_a_model_that_answers_something_else_does_not_agree() -> None:
    claim = compare(workload(0.001), workload(0.001, factor=3.0), stop=FEW, budget_s=0.05)
    assert claim.agreement is not None
    assert not claim.agreement.is_same
    assert claim.agreement.words.startswith("other outputs")


def _is_faster(claim: Claim) -> None:
    assert claim.num_pairs == 2
    assert claim.ratio is not None
    assert 1.5 < claim.ratio < 5


def test_mistakes_are_told_before_anything_is_measured() -> None:
    with pytest.raises(OptionError, match="schedule 'random' is not known; give one of rounds, turns, abba"):
        compare("a", "b", schedule="random")
    with pytest.raises(OptionError, match="give one of fixed, sequential, until-clear"):
        compare("a", "b", stop="never")
    with pytest.raises(OptionError, match="budget_s=0: give a number of seconds above 0"):
        compare("a", "b", budget_s=0)


def test_a_first_run_that_was_disturbed_leaves_its_evidence(tmp_path: Path, training: str) -> None:
    side = Variant("old", opened, {"address": f"{training}:fast"}, tmp_path / "runs", budget_s=0.05)
    first, second = side.run(), side.run()
    assert first.evidence is not None
    assert second.evidence == first.evidence


def test_workers_that_go_on_in_the_other_sides_turn_are_refused(training: str) -> None:
    with pytest.raises(TargetError, match=r"it has worker processes, .*schedule=\"abba\""):
        compare(f"{training}:with_workers", f"{training}:with_workers", stop=FEW, budget_s=0.05)


def test_a_model_and_a_training_are_not_compared(training: str) -> None:
    with pytest.raises(TargetError, match="old and new are of two kinds"):
        compare(f"{training}:fast", workload(0.001), stop=FEW, budget_s=0.05)


def test_a_side_that_cannot_be_built_is_named(training: str) -> None:
    with pytest.raises(TargetError, match=r"the new variant cannot be measured: .*no data"):
        compare(f"{training}:workload", f"{training}:broken", stop=FEW, budget_s=0.05)
