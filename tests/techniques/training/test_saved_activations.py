"""What blocks save in forward for backward, held against what their formulas need, and what is predicted from it."""

import pytest
import torch
from tiny_training import WIDTH, TinyNet, loss_of, tiny_workload, trainer_with
from torch import Tensor, nn

from whet.core.recipe import Step
from whet.measure.machine import describe
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.saved_activations import SavedActivations, saved_activations
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.training.examination import _saved

CHECKPOINTING = TRAINING_TABLE["checkpointing"]
TOKENS = 4 * 16  # of a batch


def test_a_block_saves_what_its_formula_needs() -> None:
    """Mean and deviation of the norm; its result, both halves of the gate, silu's result, and their product."""
    workload = tiny_workload()
    found = saved_activations(workload.model, workload.loss, next(iter(workload.batches)))
    assert found.blocks == (4 * (5 * TOKENS * WIDTH + 2 * TOKENS),) * 3
    assert found.products == (4 * 3 * TOKENS * WIDTH,) * 3


def test_what_dropout_saves_counts_and_nothing_is_left_behind() -> None:
    workload = tiny_workload()
    batch = next(iter(workload.batches))
    plain = saved_activations(workload.model, workload.loss, batch).blocks[0]
    for block in workload.model.blocks:  # type: ignore[union-attr]
        block.dropout.p = 0.3
    dropped = saved_activations(workload.model.train(), workload.loss, batch).blocks[0]
    assert dropped - plain in (TOKENS * WIDTH, 4 * TOKENS * WIDTH), "the mask: bytes, or floats"
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in workload.model.modules())
    assert all(p.grad is None for p in workload.model.parameters())


def test_checkpointed_blocks_save_nothing_of_their_own() -> None:
    workload = tiny_workload()
    model = trainer_with(workload, Step(technique="checkpointing")).model.train()
    assert saved_activations(model, loss_of, next(iter(workload.batches))).blocks == (0, 0, 0)


def test_a_model_without_blocks_has_nothing_to_count() -> None:
    batch = (torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,)))
    found = saved_activations(TinyNet(), lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]), batch)
    assert found == SavedActivations(blocks=(), products=())


def test_memory_that_blocks_share_belongs_to_none() -> None:
    class Adds(nn.Module):
        """Multiply the input by a number and by a table that all blocks read."""

        def __init__(self, table: Tensor) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.table = table

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.table

    table = torch.randn(8, 4)
    blocks = nn.Sequential(*(Adds(table) for _ in range(2)))
    found = saved_activations(blocks, lambda model, x: model(x).sum(), torch.randn(8, 4))
    assert found.blocks == (0, 0), "each saves the table and what it is given; a product with a constant saves no more"


@pytest.mark.parametrize(
    ("options", "blocks", "left"),
    [
        ({}, (40,) * 12, 1000 - 12 * 40 + 40),  # the last block is there again while backward goes through it
        ({"every": 2}, (40,) * 12, 1000 - 6 * 40),  # the last one that is, is there once the very last one is gone
        ({"every": 5}, (40,) * 12, 1000 - 3 * 40),
        ({"every": 3}, (100, 5, 5, 100, 90, 90), 1000 - 200),
        ({"every": 3}, (100, 5, 5, 100, 30, 30), 1000 - 200 + 40),
        ({"every": 4}, (100, 5, 5, 100, 90, 90), 1000 - 190),
        ({"keep": "products"}, (40,) * 12, 1000 - 12 * 10 + 10),
        ({"keep": "products"}, (20,) * 12, 1000),  # the products' results are larger
        ({}, (400,) * 3, 400),  # no less than parameters, gradients and state
    ],
)
def test_what_a_step_needs_follows_what_was_measured(
    options: dict[str, object], blocks: tuple[int, ...], left: int
) -> None:
    saved = SavedActivations(blocks=blocks, products=(30,) * len(blocks))
    memory = StepMemory(
        peak_bytes=1000, parameter_bytes=100, gradient_bytes=100, optimizer_bytes=200, other_bytes=600, saved=saved
    )
    assert CHECKPOINTING.predict_memory is not None
    assert CHECKPOINTING.predict_memory(memory, CHECKPOINTING.options(**options)) == left


def test_a_model_that_cannot_be_watched_is_predicted_by_rules_of_thumb(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny_workload()
    trainer, batch = trainer_with(workload), next(iter(workload.batches))
    measured = _saved(workload, trainer, batch)
    assert measured is not None and len(measured.blocks) == 3
    monkeypatch.setattr(workload.model.blocks[1], "forward", lambda x: 1 // 0)  # type: ignore[union-attr,index]
    assert _saved(workload, trainer, batch) is None
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in workload.model.modules())
    memory = StepMemory(peak_bytes=10, parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0, other_bytes=10)
    assert CHECKPOINTING.predict_memory is not None
    assert CHECKPOINTING.predict_memory(memory, CHECKPOINTING.options()) == pytest.approx(1)


def test_more_blocks_than_there_are_cannot_be_left_out() -> None:
    workload = tiny_workload()
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), [])
    verdicts = [CHECKPOINTING.check(parts, describe(), CHECKPOINTING.options(every=k)) for k in (1, 2, 3, 4)]
    assert [verdict.detail[:6] if isinstance(verdict, Applies) else "" for verdict in verdicts] == [
        "3 of 3", "2 of 3", "1 of 3", "",
    ]  # fmt: skip
    assert isinstance(verdicts[3], NotApplicable) and verdicts[3].reason == "the model has only 3 blocks"
