"""States of a few tensors, and what a checkpoint must hold of them."""

from pathlib import Path

import torch

from whet.trainer.checkpoints import Checkpoints, TrainingState


def state_of_step(step: int, size: int = 1000) -> TrainingState:
    """Return a state in which every number is the step."""
    tensors = {
        "model.first.weight": torch.full((size, 4), float(step)),
        "model.first.bias": torch.full((7,), float(step), dtype=torch.bfloat16),
        "optimizer.state.first.weight.exp_avg": torch.full((size, 4), float(step)),
        "optimizer.state.first.weight.step": torch.tensor(float(step)),
        "random.torch": torch.full((5056,), step % 256, dtype=torch.uint8),
    }
    return TrainingState(tensors, {"step": step, "config": {"lr": 0.1, "names": ["a", "b"]}})


def check_step(state: TrainingState, step: int) -> None:
    """Check that a state is the one of a step, and whole."""
    expected = state_of_step(step, state.tensors["model.first.weight"].shape[0])
    assert state.values == expected.values
    assert state.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert state.tensors[name].dtype == tensor.dtype
        assert torch.equal(state.tensors[name], tensor), name


def saved(directory: Path, *steps: int) -> Checkpoints:
    """Save steps into a directory, and keep them all."""
    checkpoints = Checkpoints(directory, keep=100)
    for step in steps:
        checkpoints.save(step, state_of_step(step, 20), wait=True)
    checkpoints.close()
    return checkpoints


def names(directory: Path) -> list[str]:
    """Return the names in a directory, hidden ones too."""
    return sorted(path.name for path in directory.iterdir())
