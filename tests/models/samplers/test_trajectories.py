"""Samplers at arbitrary timesteps: exact for a perfect model, finite for any, of the stated order for a Gaussian."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_loops import all_steps, generator, slots_of
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
    lcm,
    model_input,
    noised,
    step,
    tcd,
)

SCHEDULES = {
    "linear": Schedule.linear(),
    "scaled_linear": Schedule.scaled_linear(),
    "cosine": Schedule.squaredcos_cap_v2(),
    "noise_alone": Schedule.scaled_linear().with_zero_terminal_snr(),
}
PREDICTIONS = ("epsilon", "v", "sample")
VARIANCE_PRESERVING: dict[str, Callable[..., Steps]] = {
    "ddim": ddim,
    "dpm_solver_2m": dpm_solver_2m,
    "euler": euler,
    "euler_ancestral": euler_ancestral,
    "lcm": lcm,
    "tcd": tcd,
}


def falling(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(values, min_size=1, max_size=12, unique=True).map(lambda chosen: sorted(chosen, reverse=True))


timesteps = falling(st.integers(0, 999))


def perfect_output(steps: Steps, slot: int, clean: Tensor, noise: Tensor) -> Tensor:
    """Return what a model that knows sample and noise predicts, in the scale where their squares sum to 1."""
    signal, deviation = steps.signal[slot], steps.noise[slot]
    scale = (signal**2 + deviation**2).sqrt()
    by_name = {
        "epsilon": noise,
        "v": (signal * noise - deviation * clean) / scale,
        "sample": clean,
        "flow": noise - clean,
    }
    return by_name[steps.prediction]


def follow(steps: Steps, clean: Tensor, noise: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Run a sampler with a perfect model. Return the sample after each step, and the estimates."""
    sample = noised(steps.at(slots_of(0, clean)), clean, noise)
    samples, estimates, history = [], [], None
    for slot in range(len(steps)):
        output = perfect_output(steps, slot, clean, noise)
        sample, estimate, history = step(steps.at(slots_of(slot, clean)), sample, output, None, history)
        samples.append(sample)
        estimates.append(estimate)
    return samples, estimates


def pair() -> tuple[Tensor, Tensor]:
    clean, noise = torch.randn(2, 2, 9, generator=generator(), dtype=torch.float64)
    return clean, noise


@given(timesteps, st.sampled_from(PREDICTIONS), st.sampled_from(["linear", "scaled_linear"]))
@settings(deadline=None)
@pytest.mark.parametrize("build", [ddim, dpm_solver_2m, euler])
def test_a_perfect_model_gives_the_clean_sample_and_stays_on_its_path(
    build: Callable[..., Steps], timesteps: list[int], prediction: str, schedule: str
) -> None:
    clean, noise = pair()
    steps = build(SCHEDULES[schedule], timesteps, prediction=prediction)
    samples, estimates = follow(steps, clean, noise)
    torch.testing.assert_close(samples[-1], clean, rtol=1e-9, atol=1e-9)
    for slot, estimate in enumerate(estimates):
        torch.testing.assert_close(estimate, clean, rtol=1e-8, atol=1e-8)
        if slot + 1 < len(steps):  # each sample is a noised clean sample, with the very same noise
            expected = noised(steps.at(slots_of(slot + 1, clean)), clean, noise)
            torch.testing.assert_close(samples[slot], expected, rtol=1e-8, atol=1e-8)


@given(timesteps, st.sampled_from(["v", "sample"]))
@settings(deadline=None)
def test_a_perfect_model_gives_the_clean_sample_from_noise_alone(timesteps: list[int], prediction: str) -> None:
    clean, noise = pair()
    chosen = sorted({*timesteps, 999}, reverse=True)
    steps = ddim(SCHEDULES["noise_alone"], chosen, prediction=prediction)
    assert torch.equal(noised(steps.at(slots_of(0, clean)), clean, noise), noise)
    torch.testing.assert_close(follow(steps, clean, noise)[0][-1], clean, rtol=1e-9, atol=1e-9)


@given(falling(st.integers(1, 1000)))
@settings(deadline=None)
def test_a_perfect_flow_gives_the_clean_sample(timesteps: list[int]) -> None:
    clean, noise = pair()
    samples, estimates = follow(flow_euler(timesteps), clean, noise)
    for result in (samples[-1], *estimates):
        torch.testing.assert_close(result, clean, rtol=1e-12, atol=1e-12)


@given(timesteps, st.sampled_from(PREDICTIONS), st.sampled_from(list(SCHEDULES)))
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("name", VARIANCE_PRESERVING)
def test_every_state_is_finite(name: str, timesteps: list[int], prediction: str, schedule: str) -> None:
    if prediction == "epsilon" and schedule == "noise_alone":
        timesteps = [timestep - 1 for timestep in timesteps if timestep] or [0]
    steps = VARIANCE_PRESERVING[name](SCHEDULES[schedule], timesteps, prediction=prediction)
    assert steps.timesteps.tolist() == timesteps
    slots = torch.arange(len(steps))
    clean, noise = torch.randn(2, len(steps), 4, generator=generator())
    assert noised(steps.at(slots), clean, noise).isfinite().all()
    assert model_input(steps.at(slots), clean).isfinite().all()
    start = noised(steps.at(torch.tensor([0])), clean[:1], noise[:1])
    samples, estimates = all_steps(steps, start, noise=generator())
    assert all(one.isfinite().all() for one in (*samples, *estimates))


@pytest.mark.parametrize("build", [dpm_solver_2m, euler, euler_ancestral])
@pytest.mark.parametrize("schedule", [Schedule.linear(), Schedule.scaled_linear(), Schedule.squaredcos_cap_v2()])
def test_noise_falls_from_noise_alone_to_its_neighbour(build: Callable[..., Steps], schedule: Schedule) -> None:
    """The signal that takes the place of 0 is less than that of the timestep before the last, however small that is."""
    steps = build(schedule.with_zero_terminal_snr(), [999, 998, 990], prediction="v")
    ratio = steps.noise / steps.signal
    assert ratio.isfinite().all() and (ratio.diff() < 0).all()
    samples, _ = all_steps(steps, torch.randn(1, 4, generator=generator(), dtype=torch.float64), noise=generator())
    assert all(one.isfinite().all() for one in samples)


@given(st.lists(st.floats(0.002, 80.0), min_size=1, max_size=8, unique=True))
@settings(deadline=None)
def test_every_state_of_a_consistency_model_is_finite_and_within_its_noise(sigmas: list[float]) -> None:
    steps = consistency(sorted(sigmas, reverse=True))
    sample = torch.randn(2, 8, generator=generator()) * steps.noise[0].float()
    samples, estimates = all_steps(steps, sample, noise=generator())
    assert all(one.isfinite().all() for one in (*samples, *estimates))
    assert torch.equal(samples[-1], estimates[-1])


@given(timesteps, st.floats(0.0, 1.0), st.sampled_from(["ddim", "tcd", "euler_ancestral"]))
@settings(deadline=None)
def test_fresh_noise_keeps_the_variance_of_each_step(timesteps: list[int], part: float, name: str) -> None:
    """A sample has the noise of the next step, whatever part of it is fresh: the squares add up.

    For a perfect model, the next sample is linear in the clean sample, the old noise and the fresh noise. Unit vectors
    read the three weights.
    """
    options = {"ddim": {"eta": part}, "tcd": {"gamma": part}}.get(name, {})
    steps = VARIANCE_PRESERVING[name](SCHEDULES["linear"], timesteps, prediction="sample", **options)
    clean, old, fresh = torch.eye(3, dtype=torch.float64)[:, None]
    for slot in range(len(steps) - 1):
        rows = steps.at(torch.tensor([slot]))
        following, _, _ = step(rows, noised(rows, clean, old), clean, fresh)
        kept, *parts = following[0].tolist()
        assert kept == pytest.approx(float(steps.signal[slot + 1]), rel=1e-9)
        assert math.hypot(*parts) == pytest.approx(float(steps.noise[slot + 1]), rel=1e-7)


def gaussian_error(build: Callable[..., Steps], prediction: str, num_steps: int) -> float:
    """Return the error of a sampler between two noise levels, for data with a normal distribution of deviation 0.4.

    The score is known exactly there. The probability-flow equation keeps x_t / sqrt(ᾱ s² + 1 - ᾱ) (Song et al., 2021,
    arXiv 2011.13456, section 4.3), so the exact sample at the lower noise level is known too.
    """
    schedule = Schedule.linear(num_train_timesteps=16385, beta_start=0.0001 / 16, beta_end=0.02 / 16)
    high, low, variance = 12288, 2048, 0.4**2
    timesteps = [high - index * (high - low) // num_steps for index in range(num_steps + 1)]
    steps = build(schedule, timesteps, prediction=prediction)

    def model(sample: Tensor, timestep: Tensor) -> Tensor:
        alpha = schedule.alphas_cumprod[timestep]
        clean = alpha.sqrt() * variance / (alpha * variance + 1 - alpha) * sample
        noise = (sample - alpha.sqrt() * clean) / (1 - alpha).sqrt()
        return {"epsilon": noise, "sample": clean, "v": alpha.sqrt() * noise - (1 - alpha).sqrt() * clean}[prediction]

    def deviation(slot: int) -> Tensor:
        return (steps.signal[slot] ** 2 * variance + steps.noise[slot] ** 2).sqrt()

    start = deviation(0) * torch.tensor([[0.3], [-1.7]], dtype=torch.float64)
    samples, _ = all_steps(steps, start, model)  # the last of them is beyond the lower noise level
    return float((samples[-2] / deviation(-1) - start / deviation(0)).abs().max())


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(("build", "order"), [(ddim, 1), (euler, 1), (dpm_solver_2m, 2)])
def test_the_error_falls_with_the_stated_order(build: Callable[..., Steps], order: int, prediction: str) -> None:
    errors = [gaussian_error(build, prediction, count) for count in (32, 64, 128, 256)]
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert all(abs(found - order) < 0.35 for found in orders), (errors, orders)
    assert abs(orders[-1] - order) < 0.12, (errors, orders)
