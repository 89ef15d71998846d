"""Build samplers for distilled models, which need a few steps: latent consistency, TCD and consistency models."""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.samplers.prediction import as_floats, check_clip, check_falling, used, visited
from whet.models.samplers.schedule import Schedule
from whet.models.samplers.steps import Rows, Steps


def lcm(
    schedule: Schedule,
    timesteps: Sequence[int] | Tensor,
    *,
    prediction: str = "epsilon",
    clip: float | None = None,
    timestep_scaling: float = 10.0,
    sigma_data: float = 0.5,
) -> Steps:
    """Build the sampler of latent consistency models (Luo et al., 2023, arXiv 2310.04378, algorithm 3).

    Each step estimates the clean sample with the model's boundary condition, and adds fresh noise for the next
    timestep. With d = sigma_data and s = timestep_scaling · t, the condition weighs the sample by d² / (s² + d²) and
    the estimate by s / sqrt(s² + d²).

    Args:
        timesteps: The timesteps that are visited, falling strictly; `lcm_spaced` gives those of training.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        clip: The largest magnitude of the estimate, before the boundary condition; None does not limit it.
        sigma_data: The standard deviation of the data in the boundary condition.

    Raises:
        OptionError: An argument is out of its range.
    """
    check_clip(clip)
    _check_sigma_data(sigma_data)
    if not 0 < timestep_scaling < math.inf:
        raise OptionError(f"timestep_scaling must be above 0; got {timestep_scaling}")
    point = visited(schedule, timesteps, prediction)
    scaled = point.timesteps.to(torch.float64) * timestep_scaling
    next_a, next_b = torch.ones_like(scaled), torch.zeros_like(scaled)
    next_a[:-1], next_b[:-1] = point.signal[1:], point.noise[1:]
    rows = point.rows(
        clip,
        boundary_clean=scaled / (scaled**2 + sigma_data**2).sqrt(),
        boundary_sample=sigma_data**2 / (scaled**2 + sigma_data**2),
        next_clean=next_a,
        next_noise=used(next_b),
    )
    return Steps("lcm", prediction, rows)


def tcd(
    schedule: Schedule,
    timesteps: Sequence[int] | Tensor,
    *,
    prediction: str = "epsilon",
    gamma: float = 0.3,
    clip: float | None = None,
) -> Steps:
    """Build the sampler of trajectory consistency distillation (Zheng et al., 2024, arXiv 2402.19159, algorithm 4).

    From timestep t to t', a step first goes to s = ⌊(1 - gamma) t'⌋ as DDIM does, and then adds noise up to t'. The
    last step goes to timestep 0, without fresh noise. s is computed from gamma's decimals without rounding.

    Args:
        timesteps: The timesteps that are visited, falling strictly; `lcm_spaced` gives those of training.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        gamma: The part of fresh noise, 0 (none) to 1 (all noise is fresh).
        clip: The largest magnitude of the estimated clean sample; None does not limit it.

    Raises:
        OptionError: An argument is out of its range.
    """
    if not 0 <= gamma <= 1:
        raise OptionError(f"gamma must be 0 to 1; got {gamma}")
    check_clip(clip)
    point = visited(schedule, timesteps, prediction)
    targets = [*point.timesteps[1:].tolist(), 0]
    lower = [math.floor((1 - Fraction(str(gamma))) * target) for target in targets]
    next_alpha, lower_alpha = schedule.alphas_cumprod[targets], schedule.alphas_cumprod[lower]
    ratio = next_alpha / lower_alpha
    direction = (ratio * (1.0 - lower_alpha)).sqrt()
    rows = point.rows(
        clip,
        next_clean=next_alpha.sqrt(),
        next_sample=used(direction * point.noise_sample),
        next_output=direction * point.noise_output,
        next_noise=used((1.0 - ratio).sqrt()),
    )
    return Steps("tcd", prediction, rows)


def consistency(
    sigmas: Sequence[float] | Tensor,
    *,
    sigma_min: float = 0.002,
    sigma_data: float = 0.5,
    clip: float | None = 1.0,
) -> Steps:
    """Build the multistep sampler of consistency models (Song et al., 2023, arXiv 2303.01469, algorithm 1).

    A sample is z + σe. The model takes it divided by sqrt(σ² + sigma_data²), and 250 ln σ as its timestep. Its output
    becomes the clean sample by the boundary condition of the paper's appendix C.

    Args:
        sigmas: The noise levels that are visited, falling strictly, at least `sigma_min`; `karras_sigmas` gives those
            of training.
        sigma_min: The level at which the model returns its sample unchanged.
        sigma_data: The standard deviation of the data.
        clip: The largest magnitude of the clean sample; None does not limit it.

    Raises:
        OptionError: An argument is out of its range.
    """
    check_clip(clip)
    _check_sigma_data(sigma_data)
    chosen = as_floats("sigmas", sigmas)
    check_falling("sigmas", chosen)
    if not 0 < sigma_min <= chosen[-1]:
        raise OptionError(f"sigma_min must be above 0 and at most the last of sigmas; got {sigma_min} and {chosen}")
    levels = torch.tensor(chosen, dtype=torch.float64)
    above = levels - sigma_min
    deviation = (levels**2 + sigma_data**2).sqrt()
    following = torch.cat([levels[1:], torch.tensor([sigma_min], dtype=torch.float64)])
    rows = Rows(
        timesteps=250.0 * levels.log(),
        signal=torch.ones_like(levels),
        noise=levels,
        input_scale=1.0 / deviation,
        clean_sample=sigma_data**2 / (above**2 + sigma_data**2),
        clean_output=sigma_data * above / deviation,
        next_clean=torch.ones_like(levels),
        next_noise=used((following**2 - sigma_min**2).clamp(min=0.0).sqrt()),
        clip=clip,
    )
    return Steps("consistency", "consistency", rows)


def _check_sigma_data(sigma_data: float) -> None:
    if not 0 < sigma_data < math.inf:
        raise OptionError(f"sigma_data must be above 0; got {sigma_data}")
