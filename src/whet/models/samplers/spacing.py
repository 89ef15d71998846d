"""Choose the timesteps that a sampler visits, in falling order, as published models and diffusers do."""

import math
from collections.abc import Sequence

import numpy as np

from whet.errors import OptionError
from whet.models.samplers.schedule import TIMESTEPS


def leading(num_steps: int, *, num_train_timesteps: int = TIMESTEPS, offset: int = 0) -> list[int]:
    """Return multiples of T // n for n steps of T timesteps, moved up by `offset`: 900, 800, ..., 0 for 10 of 1000.

    Diffusers uses `leading(n + 1)[:-1]` for DPM-Solver++.

    Args:
        offset: What is added to each timestep; Stable Diffusion uses 1.

    Raises:
        OptionError: There are fewer timesteps than steps, or the offset moves one out of range.
    """
    _check(num_steps, num_train_timesteps)
    ratio = num_train_timesteps // num_steps
    timesteps = [index * ratio + offset for index in reversed(range(num_steps))]
    if timesteps[-1] < 0 or timesteps[0] >= num_train_timesteps:
        raise OptionError(
            f"offset {offset} moves a timestep out of 0 to {num_train_timesteps - 1}: use another offset or fewer steps"
        )
    return timesteps


def trailing(num_steps: int, *, num_train_timesteps: int = TIMESTEPS) -> list[int]:
    """Return evenly spaced timesteps that begin with the last: 999, 899, ..., 99 for 10 steps of 1000 timesteps.

    Raises:
        OptionError: There are fewer timesteps than steps.
    """
    _check(num_steps, num_train_timesteps)
    # arange, and not exact fractions, since halves then round as in diffusers; it may add a last one for timestep -1
    ends = np.arange(num_train_timesteps, 0, -num_train_timesteps / num_steps)[:num_steps]
    return [round(end) - 1 for end in ends.tolist()]


def linspace(num_steps: int, *, num_train_timesteps: int = TIMESTEPS) -> list[int]:
    """Return evenly spaced timesteps from the last to 0: 999, 888, ..., 0 for 10 steps of 1000; 0 alone for 1 step.

    Diffusers uses `linspace(n + 1)[:-1]` for DPM-Solver++, and `linspace_exact` for its Euler samplers.

    Raises:
        OptionError: There are fewer timesteps than steps.
    """
    return [round(value) for value in linspace_exact(num_steps, num_train_timesteps=num_train_timesteps)]


def linspace_exact(num_steps: int, *, num_train_timesteps: int = TIMESTEPS) -> list[float]:
    """Return the timesteps of `linspace` before they are rounded, for `euler` and `euler_ancestral`.

    Raises:
        OptionError: There are fewer timesteps than steps.
    """
    _check(num_steps, num_train_timesteps)
    return [float(value) for value in np.linspace(0, num_train_timesteps - 1, num_steps)[::-1]]


def lcm_spaced(
    num_steps: int, *, original_steps: int = 50, num_train_timesteps: int = TIMESTEPS, strength: float = 1.0
) -> list[int]:
    """Return timesteps of latent consistency and TCD models: 999, 759, 499, 259 for 4 steps.

    They are chosen evenly from the steps of the teacher, by which the model was distilled: every T // original_steps
    timesteps (Luo et al., 2023, arXiv 2310.04378).

    Args:
        original_steps: The number of the teacher's steps.
        num_train_timesteps: The number of timesteps T of the training process.
        strength: The part of the teacher's steps that is used, counted from the cleanest: above 0, at most 1. Less than
            1 begins with less noise, as for images that are to be changed a little.

    Raises:
        OptionError: There are fewer of the teacher's steps than steps, or a value is out of its range.
    """
    _check(original_steps, num_train_timesteps, "original_steps")
    if not 0 < strength <= 1:
        raise OptionError(f"strength must be above 0 and at most 1; got {strength}")
    ratio = num_train_timesteps // original_steps
    taught = [index * ratio - 1 for index in range(int(original_steps * strength), 0, -1)]
    if not 1 <= num_steps <= len(taught):
        raise OptionError(
            f"num_steps must be 1 to {len(taught)}, the steps of the teacher at this strength; got {num_steps}"
        )
    return [taught[math.floor(index * (len(taught) / num_steps))] for index in range(num_steps)]


def flow_spaced(num_steps: int, *, num_train_timesteps: int = TIMESTEPS, shift: float = 1.0) -> list[float]:
    """Return timesteps of flow matching, T·σ, with σ falling from 1 to about 1 / T.

    A shift s maps σ to sσ / (1 + (s - 1)σ), which spends more steps at high noise (Esser et al., 2024, arXiv
    2403.03206). Diffusers maps the lowest σ twice, and published models are used that way, so this function does too.

    Args:
        num_train_timesteps: The number of timesteps T of the training process.
        shift: The shift s, above 0; 1 changes nothing.

    Raises:
        OptionError: There are fewer timesteps than steps, or the shift is not above 0.
    """
    _check(num_steps, num_train_timesteps)
    if not 0 < shift < math.inf:
        raise OptionError(f"shift must be above 0; got {shift}")
    lowest = _shifted(np.array(1.0 / num_train_timesteps), shift)
    sigmas = _shifted(np.linspace(1.0, float(lowest), num_steps), shift)
    return [float(sigma) * num_train_timesteps for sigma in sigmas]


def karras_sigmas(
    levels: Sequence[int],
    *,
    num_levels: int = 40,
    sigma_min: float = 0.002,
    sigma_max: float = 80.0,
    rho: float = 7.0,
) -> list[float]:
    """Return noise levels σ of Karras et al. (2022, arXiv 2206.00364, equation 5), for `consistency`.

    Args:
        levels: Indices of levels, rising: 0 is `sigma_max`, and `num_levels` - 1 is `sigma_min`.
        num_levels: The number of levels with which the model was trained, at least 2.
        sigma_min: The lowest level, above 0.
        rho: The exponent that decides how the levels are spread.

    Raises:
        OptionError: An index is out of range, or a value is.
    """
    if num_levels < 2:
        raise OptionError(f"num_levels must be at least 2; got {num_levels}")
    if not 0 < sigma_min < sigma_max:
        raise OptionError(f"sigma_min must be above 0 and below sigma_max; got {sigma_min} and {sigma_max}")
    if not 0 < rho < math.inf:
        raise OptionError(f"rho must be above 0; got {rho}")
    if any(not 0 <= level < num_levels for level in levels):
        raise OptionError(f"levels must be 0 to {num_levels - 1}; got {list(levels)}")
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [float((high + level / (num_levels - 1) * (low - high)) ** rho) for level in levels]


def _shifted(sigmas: np.ndarray, shift: float) -> np.ndarray:
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def _check(num_steps: int, num_train_timesteps: int, name: str = "num_steps") -> None:
    if not 1 <= num_steps <= num_train_timesteps:
        raise OptionError(f"{name} must be 1 to {num_train_timesteps}, the number of timesteps; got {num_steps}")
