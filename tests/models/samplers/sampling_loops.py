"""Loops that run a sampler over all of its steps, and the toy model and sample of diffusers' own tests."""

from collections.abc import Callable

import torch
from torch import Tensor

from whet.models.samplers import Steps, model_input, step

Model = Callable[[Tensor, Tensor], Tensor]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def counted_sample() -> Tensor:
    """Return the sample of diffusers' tests: 768 evenly spaced numbers from 0 to 1, [4, 3, 8, 8]."""
    return (torch.arange(768).reshape(3, 8, 8, 4) / 768).permute(3, 0, 1, 2)


def ratio_model(sample: Tensor, timestep: Tensor) -> Tensor:
    """Return the output of the toy model of diffusers' tests."""
    return sample * timestep / (timestep + 1)


def bent_model(sample: Tensor, timestep: Tensor) -> Tensor:
    """Return an output that is not linear in the sample, and mixes neighbours, as a network does."""
    return torch.tanh(sample + 0.3 * sample.roll(1, -1)) * (0.5 + timestep / 1500) - 0.1


def slots_of(slot: int, sample: Tensor) -> Tensor:
    return torch.full((sample.shape[0],), slot, dtype=torch.int64)


def all_steps(
    steps: Steps,
    sample: Tensor,
    model: Model = bent_model,
    noise: torch.Generator | None = None,
    scaled: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Run all steps. Return the sample after each step, and the estimate of the clean sample in each.

    `scaled` repeats a mistake of two tests of diffusers: the scaled input of the model is also what the step takes.
    """
    samples, estimates, history = [], [], None
    for slot in range(len(steps)):
        rows = steps.at(slots_of(slot, sample))
        given = model_input(rows, sample)
        fresh = torch.randn(sample.shape, generator=noise, dtype=sample.dtype) if steps.needs_noise else None
        output = model(given, steps.timesteps[slot])
        sample, clean, history = step(rows, given if scaled else sample, output, fresh, history)
        samples.append(sample)
        estimates.append(clean)
    return samples, estimates
