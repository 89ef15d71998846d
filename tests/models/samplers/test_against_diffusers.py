"""Each sampler computes what the scheduler of diffusers computes, for the same model and the same noise."""

from typing import Any

import diffusers
import pytest
import torch
from sampling_loops import all_steps, bent_model, counted_sample, generator
from torch import Tensor

from whet.models.samplers import (
    Schedule,
    Steps,
    consistency,
    ddim,
    dpm_solver_2m,
    euler,
    euler_ancestral,
    flow_euler,
    flow_spaced,
    karras_sigmas,
    lcm,
    lcm_spaced,
    leading,
    linspace,
    linspace_exact,
    noised,
    tcd,
    trailing,
)

# Schedulers of diffusers hand tensors to functions of NumPy, of which NumPy 2 warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn.t accept a copy keyword:DeprecationWarning"
)

NAMES = {"epsilon": "epsilon", "v": "v_prediction", "sample": "sample"}
BETAS: dict[str, Any] = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
prediction = pytest.mark.parametrize("prediction", NAMES)


def schedule_of(scheduler: Any) -> Schedule:
    """Return the very schedule of a scheduler, which computes it in float32."""
    return Schedule(scheduler.alphas_cumprod.double())


def theirs(scheduler: Any, sample: Tensor, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Run a scheduler of diffusers. Return the sample after each step, and its estimates of the clean sample."""
    samples, estimates = [], []
    for timestep in scheduler.timesteps:
        given = scheduler.scale_model_input(sample, timestep) if hasattr(scheduler, "scale_model_input") else sample
        done = scheduler.step(bent_model(given, timestep), timestep, sample, **options)
        sample = done.prev_sample
        samples.append(sample)
        estimates += [done[name] for name in ("pred_original_sample", "denoised") if done.get(name) is not None]
    return samples, estimates


def check(steps: Steps, scheduler: Any, start: Tensor | None = None, tolerance: float = 2e-5, **options: Any) -> None:
    """Compare every step of a sampler with those of a scheduler, and the timesteps that the model is told."""
    sample = counted_sample() if start is None else start
    torch.testing.assert_close(steps.timesteps.double(), scheduler.timesteps.double(), rtol=1e-6, atol=1e-9)
    mine, estimates = all_steps(steps, sample, noise=generator())
    others, their_estimates = theirs(scheduler, sample, **options)
    assert len(mine) == len(others) == len(steps)
    for one, other in zip(mine, others, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    befores = [sample, *others]
    for one, other, before, signal in zip(estimates, their_estimates, befores, steps.signal.tolist(), strict=False):
        # An estimate divides by the signal what float32 has rounded at the size of the sample: 2 ** -24 of it, twice.
        rounded = 2**-23 * float(before.abs().max()) / signal if signal else 0.0
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()) + rounded)


@prediction
@pytest.mark.parametrize("count", [1, 2, 5, 10, 33])
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_ddim(prediction: str, count: int, eta: float) -> None:
    scheduler = diffusers.DDIMScheduler(
        **BETAS, prediction_type=NAMES[prediction], clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
    scheduler.set_timesteps(count)
    timesteps = leading(count, offset=1)
    steps = ddim(schedule_of(scheduler), timesteps, prediction=prediction, eta=eta, to_clean=False)
    assert steps.needs_noise == (eta > 0)
    check(steps, scheduler, eta=eta, generator=generator())


@prediction
@pytest.mark.parametrize("count", [1, 4, 20])
def test_ddim_with_a_limit_and_a_clean_end(prediction: str, count: int) -> None:
    scheduler = diffusers.DDIMScheduler(
        prediction_type=NAMES[prediction], clip_sample_range=0.7, timestep_spacing="trailing"
    )
    scheduler.set_timesteps(count)
    check(ddim(schedule_of(scheduler), trailing(count), prediction=prediction, clip=0.7), scheduler)


@pytest.mark.parametrize("prediction", ["v", "sample"])
def test_ddim_from_noise_alone(prediction: str) -> None:
    scheduler = diffusers.DDIMScheduler(
        **BETAS,
        prediction_type=NAMES[prediction],
        clip_sample=False,
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )
    scheduler.set_timesteps(8)
    steps = ddim(Schedule.scaled_linear().with_zero_terminal_snr(), trailing(8), prediction=prediction)
    assert steps.signal[0] == 0 and steps.noise[0] == 1
    check(steps, scheduler, tolerance=1e-4)


@prediction
@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 20])
def test_dpm_solver(prediction: str, count: int) -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(**BETAS, prediction_type=NAMES[prediction])
    scheduler.set_timesteps(count)
    steps = dpm_solver_2m(schedule_of(scheduler), linspace(count + 1)[:-1], prediction=prediction)
    assert steps.needs_history == (count > 2)  # neither the first step nor the last one uses it
    check(steps, scheduler)


@pytest.mark.parametrize("timesteps", [[999], [700, 650], [981, 700, 590, 40, 3]])
def test_dpm_solver_at_timesteps_of_any_distance(timesteps: list[int]) -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(final_sigmas_type="sigma_min", lower_order_final=False)
    scheduler.set_timesteps(timesteps=timesteps)
    check(dpm_solver_2m(schedule_of(scheduler), timesteps, to_clean=False), scheduler)


def test_dpm_solver_from_noise_alone() -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(
        **BETAS, prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing"
    )
    scheduler.set_timesteps(10)
    schedule = Schedule.scaled_linear().with_zero_terminal_snr()
    check(dpm_solver_2m(schedule, trailing(10), prediction="v"), scheduler, tolerance=2e-4)


@prediction
@pytest.mark.parametrize("count", [1, 3, 7, 10])
@pytest.mark.parametrize("final", ["zero", "sigma_min"])
def test_euler(prediction: str, count: int, final: str) -> None:
    scheduler = diffusers.EulerDiscreteScheduler(
        **BETAS, prediction_type=NAMES[prediction], timestep_spacing="trailing", final_sigmas_type=final
    )
    scheduler.set_timesteps(count)
    steps = euler(schedule_of(scheduler), trailing(count), prediction=prediction, to_clean=final == "zero")
    check(steps, scheduler, counted_sample() * scheduler.init_noise_sigma)


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
@pytest.mark.parametrize("count", [1, 2, 6, 10])
def test_euler_ancestral(prediction: str, count: int) -> None:
    scheduler = diffusers.EulerAncestralDiscreteScheduler(**BETAS, prediction_type=NAMES[prediction])
    scheduler.set_timesteps(count)
    steps = euler_ancestral(schedule_of(scheduler), linspace_exact(count), prediction=prediction)
    start = counted_sample() * scheduler.init_noise_sigma
    check(steps, scheduler, start, generator=generator())


def test_euler_from_noise_alone() -> None:
    scheduler = diffusers.EulerDiscreteScheduler(
        **BETAS, prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing"
    )
    scheduler.set_timesteps(10)
    steps = euler(Schedule.scaled_linear().with_zero_terminal_snr(), trailing(10), prediction="v")
    check(steps, scheduler, counted_sample() * scheduler.init_noise_sigma, tolerance=2e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 28])
@pytest.mark.parametrize("shift", [1.0, 3.0, 0.5])
def test_flow_euler(count: int, shift: float) -> None:
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(count)
    check(flow_euler(flow_spaced(count, shift=shift)), scheduler)


@prediction
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("clip", [None, 0.6])
def test_lcm(prediction: str, count: int, clip: float | None) -> None:
    scheduler = diffusers.LCMScheduler(
        prediction_type=NAMES[prediction], clip_sample=clip is not None, clip_sample_range=clip or 1.0
    )
    scheduler.set_timesteps(count)
    steps = lcm(schedule_of(scheduler), lcm_spaced(count), prediction=prediction, clip=clip)
    assert steps.needs_noise == (count > 1)
    check(steps, scheduler, generator=generator())


@prediction
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_tcd(prediction: str, count: int, gamma: float) -> None:
    scheduler = diffusers.TCDScheduler(prediction_type=NAMES[prediction])
    scheduler.set_timesteps(count)
    steps = tcd(schedule_of(scheduler), lcm_spaced(count), prediction=prediction, gamma=gamma)
    assert steps.needs_noise == (count > 1 and gamma > 0)
    check(steps, scheduler, eta=gamma, generator=generator())


def test_tcd_where_the_lower_timestep_is_whole() -> None:
    """0.7 · 690 is 483, and (1 - 0.3) · 690 is a little less in floating-point numbers."""
    scheduler = diffusers.TCDScheduler()
    scheduler.set_timesteps(timesteps=[999, 690, 370])
    steps = tcd(schedule_of(scheduler), [999, 690, 370], gamma=0.3)
    check(steps, scheduler, eta=0.3, generator=generator())


@pytest.mark.parametrize("levels", [[0], [0, 22], [0, 10, 39], [5]])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_consistency(levels: list[int], clip: float | None) -> None:
    scheduler = diffusers.CMStochasticIterativeScheduler(clip_denoised=clip is not None)
    scheduler.set_timesteps(timesteps=levels[::-1])  # diffusers takes the indices of levels in reverse
    start = counted_sample() * float(scheduler.sigmas[0])
    check(consistency(karras_sigmas(levels), clip=clip), scheduler, start, generator=generator())


@pytest.mark.parametrize("kind", ["DDIM", "Euler", "Flow"])
def test_clean_samples_enter_with_the_noise_of_any_step(kind: str) -> None:
    clean = counted_sample()
    noise = torch.randn(clean.shape, generator=generator())
    slots = torch.tensor([3, 0, 2, 2])
    if kind == "DDIM":
        scheduler: Any = diffusers.DDIMScheduler()
        scheduler.set_timesteps(5)
        steps = ddim(schedule_of(scheduler), leading(5))
    elif kind == "Euler":
        scheduler = diffusers.EulerDiscreteScheduler(timestep_spacing="trailing")
        scheduler.set_timesteps(5)
        steps = euler(schedule_of(scheduler), trailing(5))
    else:
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(5)
        steps = flow_euler(flow_spaced(5))
    add = scheduler.scale_noise if kind == "Flow" else scheduler.add_noise
    order = ("sample", "timestep", "noise") if kind == "Flow" else ("original_samples", "timesteps", "noise")
    expected = add(**dict(zip(order, (clean, scheduler.timesteps[slots], noise), strict=True)))
    torch.testing.assert_close(noised(steps.at(slots), clean, noise), expected, rtol=1e-5, atol=1e-5)
