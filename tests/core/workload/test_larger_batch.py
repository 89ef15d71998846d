"""Larger batches: the same samples in fewer steps, with the learning rate that is customary for them."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.core.workload.batch_parts import joined, parts_of
from whet.core.workload.larger_batch import JoinedBatches, with_larger_batch
from whet.core.workload.training import Trainer
from whet.errors import TargetError


def workload(**changes: Any) -> TrainingWorkload:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    fields: dict[str, Any] = {
        "model": nn.Linear(3, 1),
        "loss": lambda model, batch: model(batch["x"]).square().mean(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "batches": [{"x": part, "name": "train"} for part in x.split(4)],
        "num_samples": 4,
    }
    return TrainingWorkload(**{**fields, **changes})


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(itertools.starmap(equal, zip(a, b, strict=True)))
    return bool(a == b)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), width=st.integers(1, 3))
@settings(deadline=None)
def test_parts_that_are_joined_are_the_whole(sizes: list[int], width: int) -> None:
    number = sum(sizes)
    whole = {"ids": torch.arange(number), "x": (torch.randn(number, width), [torch.randn(number)]), "kind": "train"}
    assert equal(
        joined(parts_of({k: v for k, v in whole.items() if k != "kind"}, len(sizes))),
        {k: v for k, v in whole.items() if k != "kind"},
    )
    ends = [0, *itertools.accumulate(sizes)]
    parts = [
        {"ids": whole["ids"][a:b], "x": (whole["x"][0][a:b], [whole["x"][1][0][a:b]]), "kind": "train"}
        for a, b in itertools.pairwise(ends)
    ]
    assert equal(joined(parts), whole)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([torch.ones(2, 3), torch.ones(2, 4)], r"shapes \(2, 3\), \(2, 4\) cannot be joined"),
        ([{"n": 1}, {"n": 2}], "holds an int beside its tensors"),
        ([torch.ones(()), torch.ones(()) * 2], "holds a Tensor beside its tensors"),
    ],
)
def test_batches_that_cannot_be_joined(batches: list[Any], words: str) -> None:
    with pytest.raises(TargetError, match=words):
        joined(batches)


def test_a_pass_without_the_rest() -> None:
    batches = JoinedBatches([torch.full((2,), i) for i in range(7)], 3)
    assert [batch.tolist() for batch in batches] == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]
    assert len(batches) == 2
    with pytest.raises(TargetError, match="a pass has 2 batches, too few for a batch 3 times as large"):
        list(JoinedBatches([torch.ones(2)] * 2, 3))


def test_a_step_has_the_mean_gradient_and_a_larger_learning_rate() -> None:
    original, larger = workload(), with_larger_batch(workload(), 2)
    weight = original.model.weight.detach().clone()
    gradients = []
    for batch in list(original.batches)[:2]:
        original.model.zero_grad()
        original.loss(original.model, batch).backward()
        gradients.append(original.model.weight.grad.clone())
    trainer = Trainer(larger)
    trainer.step()
    expected = weight - 2 * 0.1 * (gradients[0] + gradients[1]) / 2
    torch.testing.assert_close(trainer.model.weight.detach(), expected)
    assert trainer.num_samples == 8


def test_the_learning_rate_follows_the_optimiser_s_rule() -> None:
    adamw = with_larger_batch(workload(optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3)), 4)
    assert Trainer(adamw).optimizer.param_groups[0]["lr"] == pytest.approx(math.sqrt(4) * 1e-3)


def test_the_schedule_is_where_it_was_after_as_many_samples() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    original = Trainer(workload(schedule=schedule))
    larger = Trainer(with_larger_batch(workload(schedule=schedule), 2))
    for _ in range(3):
        original.step()
        original.step()
        larger.step()
        rates = [trainer.optimizer.param_groups[0]["lr"] for trainer in (original, larger)]
        assert rates[1] == pytest.approx(2 * rates[0])
