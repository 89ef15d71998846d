"""The one training loop, against steps written out by hand and against a whole batch in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import OutputLoss, Trainer
from whet.errors import TargetError

Batch = tuple[Tensor, Tensor]


def squared(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def model_and_batches(num: int = 4, size: int = 6) -> tuple[nn.Module, list[Batch]]:
    torch.manual_seed(1)
    batches = [(torch.randn(size, 3).double(), torch.randn(size, 1).double()) for _ in range(num)]
    return nn.Linear(3, 1).double(), batches


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_steps_equal_those_written_out_by_hand() -> None:
    model, batches = model_and_batches()
    twin = copy.deepcopy(model)
    trainer = Trainer(TrainingWorkload(model=model, loss=squared, optimizer=sgd, batches=batches))
    losses = [float(trainer.step()) for _ in range(6)]
    optimizer, expected = sgd(twin.parameters()), []
    for batch in [*batches, *batches[:2]]:  # a second pass over the batches, in the same order
        optimizer.zero_grad()
        loss = squared(twin, batch)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses == expected == [float(loss) for loss in trainer.losses]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_accumulated_batches_make_the_step_of_one_large_batch() -> None:
    model, batches = model_and_batches()
    twin = copy.deepcopy(model)
    accumulating = TrainingWorkload(model=model, loss=squared, optimizer=sgd, batches=batches, num_accumulated=2)
    halves = zip(batches[::2], batches[1::2], strict=True)
    whole = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in halves]
    large = TrainingWorkload(model=twin, loss=squared, optimizer=sgd, batches=whole)
    one, other = Trainer(accumulating), Trainer(large)
    for _ in range(4):
        assert float(one.step()) == pytest.approx(float(other.step()), rel=1e-12)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_gradients_are_clipped_and_the_rate_follows_its_schedule() -> None:
    model, batches = model_and_batches()
    before = [p.detach().clone() for p in model.parameters()]
    trainer = Trainer(
        TrainingWorkload(
            model=model,
            loss=squared,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            batches=batches,
            clip_norm=1e-3,
            schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step),
        )
    )
    for rate in (1.0, 0.5, 0.25):
        trainer.step()
        moved = torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before, strict=True)]).norm()
        assert float(moved.detach()) == pytest.approx(rate * 1e-3, rel=1e-3)
        before = [p.detach().clone() for p in model.parameters()]


def test_a_loader_that_shuffles_gives_the_same_order_from_the_same_seed() -> None:
    data = TensorDataset(torch.arange(32.0).reshape(32, 1))

    def losses(seed: int) -> list[float]:
        model = nn.Linear(1, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        workload = TrainingWorkload(
            model=model,
            loss=lambda model, batch: model(batch[0]).mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
            batches=DataLoader(data, batch_size=8, shuffle=True),
            seed=seed,
        )
        trainer = Trainer(workload)
        return [float(trainer.step()) for _ in range(8)]

    assert losses(0) == losses(0) != losses(1)


def test_the_loss_of_an_output_as_most_loops_have_it() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            return x.sum() if y is None else {"loss": (x - y).square().sum()}

    x, y = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    model = Model()
    assert float(OutputLoss()(model, x)) == 3.0
    assert float(OutputLoss()(model, (x, y))) == 4.0
    assert float(OutputLoss()(model, {"x": x, "y": y})) == 4.0
    assert float(OutputLoss(lambda output, target: output * target.sum())(model, (x, y))) == 15.0
    with pytest.raises(TargetError, match="without a loss"):
        OutputLoss()(nn.Identity(), x)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": 3}, "model must be a torch.nn.Module"),
        ({"loss": 3}, "loss must be a function"),
        ({"optimizer": 3}, "optimizer must be a function"),
        ({"batches": torch.zeros(3)}, "batches must be a list or a loader of batches"),
        ({"num_accumulated": 0}, "num_accumulated must be 1 or more"),
    ],
)
def test_a_workload_of_the_wrong_parts_says_which(fields: dict[str, Any], words: str) -> None:
    model, batches = model_and_batches()
    parts = {"model": model, "loss": squared, "optimizer": sgd, "batches": batches, **fields}
    with pytest.raises(TargetError, match=words):
        TrainingWorkload(**parts)


def test_a_loop_that_cannot_go_on_says_why() -> None:
    model, batches = model_and_batches()
    parts: dict[str, Any] = {"model": model, "loss": squared, "optimizer": sgd, "batches": batches}
    with pytest.raises(TargetError, match=r"gives no batch$"):
        Trainer(TrainingWorkload(**{**parts, "batches": []})).step()
    trainer = Trainer(TrainingWorkload(**{**parts, "batches": iter(batches)}))
    with pytest.raises(TargetError, match="an iterator works only once"):
        for _ in range(5):
            trainer.step()
    with pytest.raises(TargetError, match="must return a tensor of one element"):
        Trainer(TrainingWorkload(**{**parts, "loss": lambda model, batch: model(batch[0])})).step()
    with pytest.raises(TargetError, match="must return an optimiser"):
        Trainer(TrainingWorkload(**{**parts, "optimizer": lambda parameters: None}))
