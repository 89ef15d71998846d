"""Turn what a model predicts into weights of the clean sample and of the noise, and check what builders are given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.samplers.schedule import Schedule
from whet.models.samplers.steps import Rows

PREDICTIONS = ("epsilon", "v", "sample")
"""What a model of a variance-preserving process may predict: the noise, v (Salimans and Ho, 2022), the clean sample."""


@dataclass(frozen=True, eq=False)
class Point:
    """Hold the visited timesteps of a schedule, and what a model's output says there, in float64 [n].

    With signal a = sqrt(ᾱ) and noise b = sqrt(1 - ᾱ), a sample is x = a z + b e. An output o gives z = clean_sample x +
    clean_output o and e = noise_sample x + noise_output o. Timesteps are int64, unless one has a fraction.
    """

    timesteps: Tensor
    signal: Tensor
    noise: Tensor
    clean_sample: Tensor
    clean_output: Tensor
    noise_sample: Tensor
    noise_output: Tensor

    def rows(self, clip: float | None, **coefficients: Tensor | None) -> Rows:
        """Return the coefficients of steps that estimate the clean sample here, with those of what comes then."""
        return Rows(
            timesteps=self.timesteps,
            signal=self.signal,
            noise=self.noise,
            clean_sample=used(self.clean_sample),
            clean_output=self.clean_output,
            clip=clip,
            **coefficients,
        )


def visited(
    schedule: Schedule,
    timesteps: Sequence[float] | Tensor,
    prediction: str,
    *,
    floor: float = 0.0,
    with_fractions: bool = False,
) -> Point:
    """Return the visited timesteps with the weights of a prediction.

    Args:
        timesteps: The timesteps, falling strictly.
        prediction: One of PREDICTIONS.
        floor: What takes the place of ᾱ = 0. Samplers that divide by sqrt(ᾱ) need one above 0.
        with_fractions: Whether timesteps may have fractions. sqrt((1 - ᾱ) / ᾱ) is then interpolated linearly.

    Raises:
        OptionError: The timesteps do not fit the schedule, the prediction is unknown, or it says nothing at a timestep
            without signal.
    """
    if prediction not in PREDICTIONS:
        raise OptionError(f"prediction must be one of {', '.join(PREDICTIONS)}; got {prediction!r}")
    chosen = as_floats("timesteps", timesteps)
    check_falling("timesteps", chosen)
    if chosen[-1] < 0 or chosen[0] > len(schedule) - 1:
        raise OptionError(f"timesteps must be 0 to {len(schedule) - 1}; got {chosen}")
    whole = all(value.is_integer() for value in chosen)
    if not (whole or with_fractions):
        raise OptionError(f"this sampler takes whole timesteps; got {chosen}")
    times = torch.tensor(chosen, dtype=torch.int64 if whole else torch.float64)
    alphas = schedule.alphas_cumprod[times] if whole else _between(schedule, times)
    if prediction == "epsilon" and alphas[0] == 0:
        raise OptionError(
            f"at timestep {chosen[0]:g} a sample is noise alone, and a predicted epsilon says nothing: use prediction "
            "'v' or 'sample', or begin with a lower timestep"
        )
    if floor:  # a timestep that is visited next, and is nearly as noisy, stays the cleaner one
        least = min([floor, *(alphas[1:2] / 4).tolist()])
        alphas = torch.where(alphas == 0, least, alphas)
    a, b = alphas.sqrt(), (1.0 - alphas).sqrt()
    return Point(times, a, b, *_weights(prediction, a, b))


def _weights(prediction: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of sample and output in the clean sample, and then in the noise."""
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    if prediction == "epsilon":
        return 1.0 / a, -b / a, zero, one
    if prediction == "v":
        return a, -b, b, a
    return zero, one, 1.0 / b, -a / b


def _between(schedule: Schedule, times: Tensor) -> Tensor:
    """Return ᾱ at timesteps with fractions, float64 [n]."""
    alphas = schedule.alphas_cumprod
    if alphas[-1] == 0 and times[0] > len(schedule) - 2:
        raise OptionError(
            f"between timesteps {len(schedule) - 2} and {len(schedule) - 1} the noise of this schedule has no limit: "
            "use whole timesteps"
        )
    sigmas = ((1.0 - alphas) / alphas).sqrt()
    earlier, later = sigmas[times.floor().long()], sigmas[times.ceil().long()]
    return 1.0 / (1.0 + (earlier + (times - times.floor()) * (later - earlier)) ** 2)


def as_floats(name: str, values: Sequence[float] | Tensor) -> list[float]:
    """Return the numbers of a sequence or of a tensor with one dimension.

    Raises:
        OptionError: They are no numbers.
    """
    try:
        return [float(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]
    except (TypeError, ValueError):
        raise OptionError(f"{name} takes a list of numbers; got {values!r}") from None


def check_falling(name: str, values: Sequence[float]) -> None:
    """Raise OptionError for values that are none, not finite, or do not fall strictly."""
    if not values:
        raise OptionError(f"{name} must hold one value or more; got none")
    if not all(map(math.isfinite, values)):
        raise OptionError(f"{name} must be finite; got {list(values)}")
    if any(later >= earlier for earlier, later in pairwise(values)):
        raise OptionError(f"{name} must fall strictly, from noisy to clean; got {list(values)}")


def check_clip(clip: float | None) -> None:
    """Raise OptionError for a limit that is not above 0."""
    if clip is not None and not 0 < clip < math.inf:
        raise OptionError(f"clip must be above 0, or None for no limit; got {clip}")


def used(coefficient: Tensor) -> Tensor | None:
    """Return the coefficient, or None if it is 0 in every step, so that its term is never computed."""
    return coefficient if bool((coefficient != 0).any()) else None
