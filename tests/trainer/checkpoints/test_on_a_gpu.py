"""A training on a GPU goes on bit for bit after it was saved and resumed."""

from pathlib import Path

import pytest
import torch
from tiny_training import VOCAB, TinyLM, loss_of

from whet.trainer.checkpoints import (
    Checkpoints,
    generator_state,
    load_generators,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_a_training_on_a_gpu_goes_on_bit_for_bit(gpu: str, fused: bool, tmp_path: Path) -> None:
    def training() -> tuple[TinyLM, torch.optim.Optimizer]:
        model = TinyLM(dropout=0.3).to(gpu)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)

    def steps(model: TinyLM, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, torch.randint(0, VOCAB, (4, 17), device=gpu))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    model, optimizer = training()
    steps(model, optimizer)
    with Checkpoints(tmp_path) as checkpoints:
        state = model_tensors(model) | optimizer_tensors(model, optimizer) | generator_state()
        checkpoints.save(3, state)
        expected = steps(model, optimizer)  # while it is written
        checkpoints.wait()
        found = checkpoints.newest()
        assert found is not None
        read = checkpoints.load(found.path)
    other, resumed = training()
    load_model(other, read)
    load_optimizer(other, resumed, read)
    assert load_generators(read) == ()
    assert steps(other, resumed) == expected
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert all(x.device == resumed.state[q][key].device for key, x in optimizer.state[p].items())
