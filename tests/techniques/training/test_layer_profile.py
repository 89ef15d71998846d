"""The layers of a training step, forward and backward, whose operations follow from their sizes."""

import pytest
import torch
from tiny_training import VOCAB, WIDTH, tiny_workload
from torch.utils.flop_counter import FlopCounterMode

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.measure.machine.limits import Limits
from whet.techniques.costs.layer_profile import OUTSIDE, LayerProfile, profile_training_layers

LIMITS = Limits(read_bandwidth=2e10, gemm={"float32": 5e10}, operator_s=2e-6)
TOKENS = 4 * 16


@pytest.fixture(scope="module")
def profiled() -> LayerProfile:
    workload = tiny_workload(num_accumulated=2)
    return profile_training_layers(workload, Trainer(workload), LIMITS)


def test_operations_follow_from_the_sizes(profiled: LayerProfile) -> None:
    """A linear layer multiplies once in forward, and twice in backward: for its input and for its weight."""
    layers = {layer.name: layer for layer in profiled.layers}
    head = 2 * 2 * TOKENS * WIDTH * VOCAB
    assert (layers["head"].flops, layers["head"].backward_flops) == (head, 2 * head)
    inner = 2 * 2 * TOKENS * WIDTH * WIDTH
    for name in ("blocks.0.up", "blocks.1.gate", "blocks.2.down"):
        assert (layers[name].flops, layers[name].backward_flops) == (inner, 2 * inner)
    assert layers["embedding"].flops == layers["embedding"].backward_flops == 0
    assert layers["head"].calls == 2, "once for each accumulated batch"
    assert layers["head"].num_bytes >= 4 * 2 * TOKENS * VOCAB
    assert layers[OUTSIDE].backward_bytes >= 2 * 4 * TOKENS * VOCAB, "the gradient of the logits"


def test_all_operations_of_a_step_are_some_layers(profiled: LayerProfile) -> None:
    workload = tiny_workload(num_accumulated=2)
    trainer = Trainer(workload)
    with FlopCounterMode(display=False) as counter:
        trainer.compute(trainer.next_batches(), updates=False)
    assert sum(layer.flops + layer.backward_flops for layer in profiled.layers) == counter.get_total_flops()


def test_every_layer_with_weights_has_a_backward_and_the_parts_are_the_whole(profiled: LayerProfile) -> None:
    """The shares come from one profile, so that they add up by construction: what is checked is that none is lost."""
    for layer in profiled.layers:
        if layer.kind in ("Linear", "LayerNorm", "Embedding"):
            assert layer.backward_s > 0
            assert layer.backward_bytes > 0
    whole = sum(layer.backward_s for layer in profiled.layers) + profiled.accumulation_s
    assert whole == pytest.approx(profiled.backward_s)
    assert profiled.notes[0].startswith("left out: the optimiser")
    assert not any("belongs to no layer" in note for note in profiled.notes)


def test_watching_changes_no_gradient_and_leaves_no_trace() -> None:
    def gradients(workload: TrainingWorkload, *, watch: bool) -> list[torch.Tensor]:
        trainer = Trainer(workload)
        if watch:
            profile_training_layers(workload, trainer, LIMITS)
            assert all(p.grad is None for p in trainer.model.parameters())
            assert all("forward" not in vars(module) for module in trainer.model.modules())
        trainer.compute(workload.batches[:2], updates=False)  # type: ignore[index]
        return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]

    for plain, watched in zip(
        gradients(tiny_workload(), watch=False), gradients(tiny_workload(), watch=True), strict=True
    ):
        assert torch.equal(plain, watched)
