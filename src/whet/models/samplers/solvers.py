"""Build samplers that solve the equation of a diffusion process: DDIM, DPM-Solver++(2M), Euler, and flow Euler."""

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.samplers.prediction import Point, as_floats, check_clip, check_falling, used, visited
from whet.models.samplers.schedule import TIMESTEPS, Schedule
from whet.models.samplers.steps import Rows, Steps

LEAST_SIGNAL = 2.0**-24
"""The ᾱ that takes the place of 0 in samplers that divide by it, as in diffusers: float16's lowest number above 0."""


def ddim(
    schedule: Schedule,
    timesteps: Sequence[int] | Tensor,
    *,
    prediction: str = "epsilon",
    eta: float = 0.0,
    clip: float | None = None,
    to_clean: bool = True,
) -> Steps:
    """Build DDIM (Song et al., 2021, arXiv 2010.02502, equations 12 and 16).

    Each step goes to the next timestep that is visited, however far away it is.

    Args:
        timesteps: The timesteps that are visited, falling strictly.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        eta: The part of fresh noise, 0 (none) to 1 (as much as DDPM).
        clip: The largest magnitude of the estimated clean sample; None does not limit it.
        to_clean: Whether the last step ends at the clean sample. Otherwise it ends at the noise of timestep 0, as in
            diffusers with set_alpha_to_one=False.

    Raises:
        OptionError: An argument is out of its range.
    """
    if not 0 <= eta <= 1:
        raise OptionError(f"eta must be 0 to 1; got {eta}")
    check_clip(clip)
    point = visited(schedule, timesteps, prediction)
    a, b = point.signal, point.noise
    next_a, next_b = _after(a, b, schedule, to_clean)
    fresh = eta * (next_b / b) * (1.0 - (a / next_a) ** 2).clamp(min=0.0).sqrt()
    direction = (next_b**2 - fresh**2).clamp(min=0.0).sqrt()
    rows = point.rows(
        clip,
        next_clean=next_a,
        next_sample=used(direction * point.noise_sample),
        next_output=used(direction * point.noise_output),
        next_noise=used(fresh),
    )
    return Steps("ddim", prediction, rows)


def dpm_solver_2m(
    schedule: Schedule,
    timesteps: Sequence[int] | Tensor,
    *,
    prediction: str = "epsilon",
    clip: float | None = None,
    to_clean: bool = True,
) -> Steps:
    """Build DPM-Solver++(2M) (Lu et al., 2022, arXiv 2211.01095, algorithm 2), in its midpoint form.

    The first step is of first order, since it has no history. So is a last step that ends at the clean sample, whose
    logarithmic signal-to-noise ratio is infinite; a last step that ends at timestep 0 is of second order. An image that
    enters with less noise has no history either: build the sampler from the timesteps that are left, so that it enters
    the first step.

    Args:
        schedule: The process. An ᾱ of 0 is replaced by LEAST_SIGNAL.
        timesteps: The timesteps that are visited, falling strictly.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        clip: The largest magnitude of the estimated clean sample; None does not limit it.
        to_clean: Whether the last step ends at the clean sample. Otherwise it ends at the noise of timestep 0, as in
            diffusers with final_sigmas_type="sigma_min" and lower_order_final=False.

    Raises:
        OptionError: An argument is out of its range.
    """
    check_clip(clip)
    point = visited(schedule, timesteps, prediction, floor=LEAST_SIGNAL)
    a, b = point.signal, point.noise
    next_a, next_b = _after(a, b, schedule, to_clean)
    logs = torch.cat([a, next_a[-1:]]).log() - torch.cat([b, next_b[-1:]]).log()
    change = logs.diff()
    history = torch.zeros_like(a)
    history[1:] = change[1:] / (2.0 * change[:-1])
    if to_clean:
        history[-1] = 0.0
    rows = point.rows(
        clip,
        next_clean=next_a - next_b / b * a,
        next_sample=used(next_b / b),
        next_history=used(history),
    )
    return Steps("dpm_solver_2m", prediction, rows)


def euler(
    schedule: Schedule,
    timesteps: Sequence[float] | Tensor,
    *,
    prediction: str = "epsilon",
    clip: float | None = None,
    to_clean: bool = True,
) -> Steps:
    """Build Euler's method in the scale of σ = sqrt((1 - ᾱ) / ᾱ) (Karras et al., 2022, arXiv 2206.00364, algorithm 1).

    A sample is z + σe, so `model_input` must be applied before the model.

    Args:
        schedule: The process. An ᾱ of 0 is replaced by LEAST_SIGNAL.
        timesteps: The timesteps that are visited, falling strictly. σ is interpolated where they have fractions.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        clip: The largest magnitude of the estimated clean sample; None does not limit it.
        to_clean: Whether the last step ends at the clean sample. Otherwise it ends at the noise of timestep 0, as in
            diffusers with final_sigmas_type="sigma_min".

    Raises:
        OptionError: An argument is out of its range.
    """
    check_clip(clip)
    point = visited(schedule, timesteps, prediction, floor=LEAST_SIGNAL, with_fractions=True)
    next_a, next_b = _after(point.signal, point.noise, schedule, to_clean)
    kept = (next_b / next_a) / (point.noise / point.signal)
    return Steps("euler", prediction, _sigma_rows(point, kept, None, clip))


def euler_ancestral(
    schedule: Schedule,
    timesteps: Sequence[float] | Tensor,
    *,
    prediction: str = "epsilon",
    clip: float | None = None,
) -> Steps:
    """Build ancestral Euler: each step goes below the next noise level, and fresh noise leads back to it.

    The scale is that of `euler`. From σ to σ' the fresh noise is σ'·sqrt(σ² - σ'²) / σ, and the rest of σ'² remains of
    the old noise (k-diffusion's sample_euler_ancestral with eta=1).

    Args:
        schedule: The process. An ᾱ of 0 is replaced by LEAST_SIGNAL.
        timesteps: The timesteps that are visited, falling strictly. σ is interpolated where they have fractions.
        prediction: What the model's output is: "epsilon", "v" or "sample".
        clip: The largest magnitude of the estimated clean sample; None does not limit it.

    Raises:
        OptionError: An argument is out of its range.
    """
    check_clip(clip)
    point = visited(schedule, timesteps, prediction, floor=LEAST_SIGNAL, with_fractions=True)
    next_a, next_b = _after(point.signal, point.noise, schedule, to_clean=True)
    ratio = (next_b / next_a) / (point.noise / point.signal)
    fresh = (next_b / next_a) * (1.0 - ratio**2).clamp(min=0.0).sqrt()
    return Steps("euler_ancestral", prediction, _sigma_rows(point, ratio**2, fresh, clip))


def flow_euler(timesteps: Sequence[float] | Tensor, *, num_train_timesteps: int = TIMESTEPS) -> Steps:
    """Build Euler's method for flow matching (Lipman et al., 2023; Liu et al., 2023).

    A sample is (1 - σ) z + σe with σ = t / T, and the model predicts e - z.

    Args:
        timesteps: The timesteps t that are visited, falling strictly, above 0 and at most T. They may have fractions.
        num_train_timesteps: The number of timesteps T of the training process.

    Raises:
        OptionError: The timesteps do not fall strictly, or leave their range.
    """
    chosen = as_floats("timesteps", timesteps)
    check_falling("timesteps", chosen)
    if chosen[-1] <= 0 or chosen[0] > num_train_timesteps:
        raise OptionError(f"timesteps must be above 0 and at most {num_train_timesteps}; got {chosen}")
    times = torch.tensor(chosen, dtype=torch.float64)
    sigmas = times / num_train_timesteps
    one = torch.ones_like(sigmas)
    change = torch.cat([sigmas[1:], torch.zeros(1, dtype=torch.float64)]) - sigmas
    rows = Rows(
        timesteps=times,
        signal=1.0 - sigmas,
        noise=sigmas,
        clean_sample=one,
        clean_output=-sigmas,
        next_sample=one,
        next_output=change,
    )
    return Steps("flow_euler", "flow", rows)


def _after(a: Tensor, b: Tensor, schedule: Schedule, to_clean: bool) -> tuple[Tensor, Tensor]:
    """Return signal and noise after each step; after the last one, those of a clean sample or of timestep 0."""
    last = torch.ones(1, dtype=torch.float64) if to_clean else schedule.alphas_cumprod[:1]
    return torch.cat([a[1:], last.sqrt()]), torch.cat([b[1:], (1.0 - last).sqrt()])


def _sigma_rows(point: Point, kept: Tensor, fresh: Tensor | None, clip: float | None) -> Rows:
    """Return coefficients in the scale of σ, for steps that keep a part of the sample and take the rest from z."""
    return Rows(
        timesteps=point.timesteps,
        signal=torch.ones_like(point.signal),
        noise=point.noise / point.signal,
        input_scale=point.signal,
        clean_sample=used(point.clean_sample * point.signal),
        clean_output=point.clean_output,
        next_clean=1.0 - kept,
        next_sample=used(kept),
        next_noise=None if fresh is None else used(fresh),
        clip=clip,
    )
