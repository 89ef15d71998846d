"""Generators draw after a resume what they would have drawn."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from whet.errors import CheckpointError, OptionError
from whet.trainer.checkpoints import Checkpoints, TrainingState, generator_state, load_generators


def written_and_read(state: TrainingState, directory: Path) -> TrainingState:
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(1, state, wait=True)
        return checkpoints.load(directory / "step-00000001")


def draws(own: Any = ()) -> list[float]:
    drawn = [random.random(), random.gauss(0, 1), float(np.random.random()), float(np.random.randn())]
    drawn += [float(torch.rand(())), float(torch.randn(()))]
    for one in own:
        if isinstance(one, torch.Generator):
            drawn.append(float(torch.rand((), generator=one)))
        else:
            drawn.append(float(one.random() if not isinstance(one, np.random.RandomState) else one.randn()))
    return drawn


def own_generators(seed: int) -> dict[str, Any]:
    return {
        "data": torch.Generator().manual_seed(seed),
        "noise": np.random.default_rng(seed),
        "philox": np.random.Generator(np.random.Philox(seed)),
        "old": np.random.RandomState(seed),
        "python": random.Random(seed),
    }


def test_generators_draw_what_they_would_have_drawn(tmp_path: Path) -> None:
    own = own_generators(1)
    draws(own.values())  # so that some hold the second of a pair of normal numbers
    read = written_and_read(generator_state(own), tmp_path)
    expected = draws(own.values())
    other = own_generators(2)
    draws(other.values())
    torch.manual_seed(5)
    assert load_generators(read, other) == ()
    assert draws(other.values()) == expected
    assert torch.initial_seed() == 0


def test_generators_that_cannot_be_restored_are_named() -> None:
    state = generator_state({"data": torch.Generator()})
    with pytest.raises(CheckpointError, match="the checkpoint has no generator 'noise'"):
        load_generators(state, {"noise": random.Random()})
    if not torch.cuda.is_available():
        state.tensors["random.cuda.0"] = torch.zeros(16, dtype=torch.uint8)
        notes = load_generators(state)
        assert "generator of GPU 0 was not restored: PyTorch sees 0 GPUs here" in notes[0]
        assert "generator 'data' was not restored: the training has none of this name" in notes[1]
    with pytest.raises(CheckpointError, match="the checkpoint has no part 'random'"):
        load_generators(TrainingState())
    state.values["random"]["numpy"] = [1]
    with pytest.raises(CheckpointError, match="a generator does not take the state in the checkpoint"):
        load_generators(state)
    with pytest.raises(OptionError, match="a generator is an int"):
        generator_state({"data": 3})  # type: ignore[dict-item]
