"""Masks of zeros: chosen as torch.nn.utils.prune chooses them, kept through every step, cut by the cubic schedule."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from whet.errors import CheckpointError, OptionError
from whet.techniques.mechanisms.pruning.masks import Masks, magnitude_masks, pattern_masks, prunable
from whet.techniques.mechanisms.pruning.schedule import CubicSchedule
from whet.trainer.gradual_pruning import GradualPruning


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5))


@given(amount=st.floats(0, 1), seed=st.integers(0, 100))
def test_global_masks_are_those_of_pytorch(amount: float, seed: int) -> None:
    model = network(seed)
    masks = magnitude_masks(prunable(model), amount)
    prune.global_unstructured(
        [(model[0], "weight"), (model[4], "weight")], pruning_method=prune.L1Unstructured, amount=amount
    )
    expected = {"0.weight": model[0].weight_mask, "4.weight": model[4].weight_mask}
    assert masks.keys() == expected.keys()
    for name, mask in masks.items():
        assert torch.equal(mask, expected[name].bool()), name


@given(amount=st.floats(0, 1), seed=st.integers(0, 100))
def test_masks_of_each_layer_are_those_of_pytorch(amount: float, seed: int) -> None:
    model = network(seed)
    masks = magnitude_masks(prunable(model), amount, "layer")
    for index in (0, 4):
        prune.l1_unstructured(model[index], "weight", amount=amount)
        assert torch.equal(masks[f"{index}.weight"], model[index].weight_mask.bool())


def test_two_of_four() -> None:
    masks = pattern_masks({"w": torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.0, 1.0, -1.0]])}, 2, 4)
    assert masks["w"].tolist() == [[False, True, True, False, False, False, True, True]]
    with pytest.raises(OptionError, match="no multiple of 4"):
        pattern_masks({"w": torch.ones(2, 6)}, 2, 4)


def test_embeddings_and_what_shares_them_are_left_alone() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.inner, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

    assert list(prunable(Tied())) == ["inner.weight"]
    with pytest.raises(OptionError, match="no matrices"):
        Masks(nn.Embedding(3, 3))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_momentum_and_decay_revive_nothing(kind: str) -> None:
    model = network()
    x, y = torch.randn(6, 2, 6, 6), torch.randint(0, 5, (6,))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    for _ in range(3):  # momentum moves every weight
        step()
    masks = Masks(model)
    masks.cut(0.7)
    gone = {name: ~mask for name, mask in masks.kept.items()}
    assert masks.sparsity == pytest.approx(0.7, abs=0.01)
    for _ in range(5):
        step()
        assert all(not masks.weights[name].grad[where].any() for name, where in gone.items())
        masks.enforce()
        assert all(not masks.weights[name][where].any() for name, where in gone.items())
    masks.cut(0.8)
    assert all(not masks.kept[name][where].any() for name, where in gone.items()), "what is gone stays gone"
    masks.make_permanent()
    step()
    assert any(masks.weights[name][where].any() for name, where in gone.items()), "the model is free again"


def test_the_schedule_at_known_points() -> None:
    schedule = CubicSchedule(amount=0.8, begin_step=100, end_step=500, interval=50)
    known = {0: 0.0, 99: 0.0, 100: 0.0, 200: 0.8 - 0.8 * 0.75**3, 300: 0.7, 400: 0.7875, 500: 0.8, 900: 0.8}
    for step, sparsity in known.items():
        assert schedule.sparsity(step) == pytest.approx(sparsity), step
    assert [step for step in range(601) if schedule.cuts_after(step)] == list(range(100, 501, 50))
    assert CubicSchedule(0.5, 0, 10, 4).cuts_after(10), "it cuts at its end, whatever the interval"


@pytest.mark.parametrize("bad", [{"amount": 1.0}, {"begin_step": 9, "end_step": 3}, {"interval": 0}, {"initial": 0.9}])
def test_a_schedule_out_of_range_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        CubicSchedule(**{"amount": 0.5, "begin_step": 0, "end_step": 10, **bad})  # type: ignore[arg-type]


def test_gradual_pruning_reaches_its_end_and_goes_on() -> None:
    model = network()
    schedule = CubicSchedule(0.6, 2, 6, 2)
    pruning = GradualPruning(model, schedule)
    found = []
    for step in range(1, 9):
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.01
        pruning.after_step(step)
        found.append(pruning.masks.sparsity)
    wanted = [0.0, 0.0, 0.0, 0.525, 0.525, 0.6, 0.6, 0.6]
    assert found == pytest.approx(wanted, abs=0.01)
    again = GradualPruning(network(), schedule)
    again.restore(pruning.state())
    kept: dict[str, Tensor] = again.masks.kept
    assert all(torch.equal(kept[name], mask) for name, mask in pruning.masks.kept.items())
    with pytest.raises(CheckpointError, match="not those of this model"):
        GradualPruning(nn.Linear(3, 3), schedule).restore(pruning.state())
