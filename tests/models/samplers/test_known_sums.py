"""The sums of absolute values that diffusers' own tests expect, for its toy model, its sample and seed 0.

Two sums of diffusers come from loops with a mistake: the tests of both Euler samplers hand the scaled input of the
model to the step as well, where the sample itself belongs. Those sums (10.0807 and 152.3192) are met only with the same
mistake. The right loop gives 168.0514 for Euler.
"""

import pytest
import torch
from sampling_loops import all_steps, counted_sample, generator, ratio_model
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
    tcd,
)

LINEAR = Schedule.linear()
LATENT = Schedule.scaled_linear()
LONG = Schedule.linear(num_train_timesteps=1100)
LONG_TIMESTEPS = linspace_exact(10, num_train_timesteps=1100)


def final(steps: Steps, scale: float | Tensor = 1.0, scaled: bool = False) -> Tensor:
    samples, _ = all_steps(steps, counted_sample() * scale, ratio_model, generator(), scaled)
    return samples[-1].abs().double()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(ddim(LINEAR, leading(10), clip=1.0), 172.0067, id="ddim"),
        pytest.param(ddim(LINEAR, leading(10), prediction="v", clip=1.0), 52.5302, id="ddim-v"),
        pytest.param(lcm(LATENT, lcm_spaced(1)), 18.7097, id="lcm-1"),
        pytest.param(lcm(LATENT, lcm_spaced(10)), 197.7616, id="lcm-10"),
        pytest.param(tcd(LATENT, lcm_spaced(1), gamma=0.0), 29.8715, id="tcd-1"),
        pytest.param(tcd(LATENT, lcm_spaced(10), gamma=0.0), 181.2040, id="tcd-10"),
        pytest.param(flow_euler(flow_spaced(1)), 0.3831, id="flow-1"),
        pytest.param(flow_euler(flow_spaced(2)), 0.7659, id="flow-2"),
        pytest.param(flow_euler(flow_spaced(4)), 114.055, id="flow-4"),
        pytest.param(flow_euler(flow_spaced(10)), 133.362, id="flow-10"),
    ],
)
def test_sums(steps: Steps, expected: float) -> None:
    assert float(final(steps).sum()) == pytest.approx(expected, abs=5e-4)


def test_the_mean_of_dpm_solver() -> None:
    steps = dpm_solver_2m(LINEAR, linspace(11)[:-1], to_clean=False)
    assert float(final(steps).mean()) == pytest.approx(0.3301, abs=5e-5)


@pytest.mark.parametrize(("levels", "expected"), [([0], 192.7614), ([0, 106], 347.6357)])
def test_the_sums_of_consistency(levels: list[int], expected: float) -> None:
    steps = consistency(karras_sigmas(levels, num_levels=201))
    assert float(final(steps, 80.0).sum()) == pytest.approx(expected, abs=5e-4)


def test_the_sum_of_euler_in_the_right_loop() -> None:
    steps = euler(LONG, LONG_TIMESTEPS)
    assert float(final(steps, steps.noise[0].float()).sum()) == pytest.approx(168.0514, abs=5e-4)


@pytest.mark.parametrize(("build", "expected"), [(euler, 10.0807), (euler_ancestral, 152.3192)])
def test_the_mistaken_sums_of_both_euler_samplers_come_from_the_mistaken_loop(build: object, expected: float) -> None:
    steps = build(LONG, LONG_TIMESTEPS)
    scale = steps.noise[0].float()
    assert float(final(steps, scale, scaled=True).sum()) == pytest.approx(expected, abs=5e-4)
    assert abs(float(final(steps, scale).sum()) - expected) > 50


def test_float64_gives_the_same_sums() -> None:
    steps = ddim(LINEAR, leading(10), clip=1.0)
    samples, _ = all_steps(steps, counted_sample().double(), ratio_model)
    assert samples[-1].dtype == torch.float64
    assert float(samples[-1].abs().sum()) == pytest.approx(172.0067, abs=5e-4)
