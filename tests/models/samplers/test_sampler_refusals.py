"""What cannot be right is refused with one line before anything runs."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.samplers import (
    Schedule,
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
    model_input,
    noised,
    step,
    tcd,
    trailing,
)

LINEAR = Schedule.linear()
NOISE_ALONE = LINEAR.with_zero_terminal_snr()
VARIANCE_PRESERVING = [ddim, dpm_solver_2m, euler, euler_ancestral, lcm, tcd]


def refused(call: Callable[..., Any], *arguments: Any, match: str, **options: Any) -> None:
    with pytest.raises(OptionError, match=match) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", VARIANCE_PRESERVING)
def test_timesteps_and_predictions(build: Callable[..., Any]) -> None:
    refused(build, LINEAR, [], match="timesteps must hold one value or more")
    refused(build, LINEAR, [500, 500], match="timesteps must fall strictly")
    refused(build, LINEAR, [100, 900], match="timesteps must fall strictly")
    refused(build, LINEAR, [1000, 3], match="timesteps must be 0 to 999")
    refused(build, LINEAR, [10, -1], match="timesteps must be 0 to 999")
    refused(build, LINEAR, [math.nan], match="timesteps must be finite")
    refused(build, LINEAR, ["a"], match="timesteps takes a list of numbers")
    refused(build, LINEAR, 999, match="timesteps takes a list of numbers")
    refused(build, LINEAR, torch.tensor([[9, 3]]), match="timesteps takes a list of numbers")
    refused(build, LINEAR, [900], prediction="v_prediction", match="prediction must be one of epsilon, v, sample")
    refused(build, LINEAR, [900], clip=0.0, match="clip must be above 0")
    refused(build, NOISE_ALONE, [999, 3], prediction="epsilon", match="at timestep 999 a sample is noise alone")
    assert build(NOISE_ALONE, [998, 3], prediction="epsilon").signal[0] > 0


@pytest.mark.parametrize("build", VARIANCE_PRESERVING)
def test_timesteps_with_fractions(build: Callable[..., Any]) -> None:
    if build in (euler, euler_ancestral):
        assert build(LINEAR, [499.5, 3]).timesteps.tolist() == [499.5, 3]
        refused(build, NOISE_ALONE, [998.5, 3], prediction="v", match="has no limit: use whole timesteps")
    else:
        refused(build, LINEAR, [499.5, 3], match="this sampler takes whole timesteps")
    assert build(LINEAR, torch.tensor([499.0, 3.0])).timesteps.dtype == torch.int64


def test_options_of_samplers() -> None:
    refused(ddim, LINEAR, [9], eta=1.1, match="eta must be 0 to 1")
    refused(tcd, LINEAR, [9], gamma=-0.1, match="gamma must be 0 to 1")
    refused(lcm, LINEAR, [9], timestep_scaling=0.0, match="timestep_scaling must be above 0")
    refused(lcm, LINEAR, [9], sigma_data=math.inf, match="sigma_data must be above 0")
    refused(flow_euler, [0.0], match="timesteps must be above 0 and at most 1000")
    refused(flow_euler, [1001.0, 5.0], match="timesteps must be above 0 and at most 1000")
    refused(flow_euler, [5.0, 6.0], match="timesteps must fall strictly")
    refused(consistency, [1.0, 2.0], match="sigmas must fall strictly")
    refused(consistency, [1.0, 0.001], match="sigma_min must be above 0 and at most the last of sigmas")
    refused(consistency, [1.0], sigma_data=0.0, match="sigma_data must be above 0")
    refused(consistency, [], match="sigmas must hold one value or more")


def test_schedules() -> None:
    refused(Schedule, torch.tensor([]), match="alphas_cumprod takes one value a timestep")
    refused(Schedule, torch.ones(2, 2), match="alphas_cumprod takes one value a timestep")
    for values in ([1.0, 0.5], [0.5, 0.5], [0.4, 0.5], [0.5, -0.1], [0.5, math.nan], [math.nan]):
        refused(Schedule, torch.tensor(values), match="alphas_cumprod must fall strictly")
    refused(Schedule.from_betas, [0.1, 0.0], match="each beta of a schedule must be above 0 and at most 1")
    refused(Schedule.from_betas, [0.1, math.nan], match="each beta of a schedule must be above 0 and at most 1")
    refused(Schedule.linear, 0.0, 0.1, match="beta_start and beta_end must be above 0")
    refused(Schedule.scaled_linear, -0.1, 0.1, match="beta_start and beta_end must be above 0")
    refused(Schedule.squaredcos_cap_v2, num_train_timesteps=0, match="num_train_timesteps must be at least 1")
    refused(Schedule.from_betas([0.1]).with_zero_terminal_snr, match="a schedule of one timestep")


@pytest.mark.parametrize("function", [leading, trailing, linspace, linspace_exact, flow_spaced])
def test_numbers_of_steps(function: Callable[..., Any]) -> None:
    refused(function, 0, match="num_steps must be 1 to 1000")
    refused(function, 11, num_train_timesteps=10, match="num_steps must be 1 to 10, the number of timesteps; got 11")


def test_options_of_spacings() -> None:
    refused(leading, 1000, offset=1, match="offset 1 moves a timestep out of 0 to 999")
    refused(leading, 10, offset=-1, match="offset -1 moves a timestep out of 0 to 999")
    refused(flow_spaced, 4, shift=0.0, match="shift must be above 0")
    refused(lcm_spaced, 51, match="num_steps must be 1 to 50, the steps of the teacher")
    refused(lcm_spaced, 26, strength=0.5, match="num_steps must be 1 to 25, the steps of the teacher")
    refused(lcm_spaced, 1, strength=0.0, match="strength must be above 0")
    refused(lcm_spaced, 1, original_steps=1001, match="original_steps must be 1 to 1000")
    refused(karras_sigmas, [40], match="levels must be 0 to 39")
    refused(karras_sigmas, [0], num_levels=1, match="num_levels must be at least 2")
    refused(karras_sigmas, [0], sigma_min=90.0, match="sigma_min must be above 0 and below sigma_max")
    refused(karras_sigmas, [0], rho=0.0, match="rho must be above 0")


def test_shapes() -> None:
    steps = lcm(LINEAR, [900, 500])
    rows = steps.at(torch.tensor([0, 1]))
    sample = torch.zeros(2, 3, 4)
    refused(step, rows, sample, torch.zeros(2, 3, 5), match=r"output must have the samples' shape \[2, 3, 4\]; got")
    refused(step, rows, sample, sample, torch.zeros(1, 3, 4), match="noise must have the samples' shape")
    refused(step, rows, sample, sample, sample, torch.zeros(2), match="history must have the samples' shape")
    refused(step, rows, torch.zeros(3, 4), torch.zeros(3, 4), match="there are 2 rows, and samples of shape")
    refused(step, rows, torch.zeros(()), torch.zeros(()), match="there are 2 rows, and samples of shape")
    refused(step, rows, sample, sample, match="this sampler adds noise in each step: give noise")
    refused(noised, rows, sample, torch.zeros(2, 3), match="noise must have the samples' shape")
    refused(model_input, rows, torch.zeros(1, 3), match="there are 2 rows, and samples of shape")
    refused(model_input, rows, sample.to(torch.uint8), match="samples must be floating-point numbers")


@pytest.mark.parametrize("slots", [torch.tensor(0), torch.tensor([0.0]), torch.tensor([[0]]), torch.tensor([True])])
def test_slots(slots: Tensor) -> None:
    refused(ddim(LINEAR, [900]).at, slots, match=r"slots takes int64 of shape \[b\]")
