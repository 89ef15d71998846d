"""Schedules and timesteps are those of diffusers, and of the definition."""

import math
from itertools import pairwise

import diffusers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.models.samplers import (
    Schedule,
    flow_spaced,
    karras_sigmas,
    lcm_spaced,
    leading,
    linspace,
    linspace_exact,
    trailing,
)

BUILDERS = {
    "linear": Schedule.linear,
    "scaled_linear": Schedule.scaled_linear,
    "squaredcos_cap_v2": Schedule.squaredcos_cap_v2,
}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("count", [1000, 50])
@pytest.mark.parametrize("rescaled", [False, True])
def test_schedules_are_those_of_diffusers(name: str, count: int, rescaled: bool) -> None:
    options = {} if name == "squaredcos_cap_v2" else {"beta_start": 0.0003, "beta_end": 0.03}
    schedule = BUILDERS[name](**options, num_train_timesteps=count)
    if rescaled:
        schedule = schedule.with_zero_terminal_snr()
        assert schedule.alphas_cumprod[-1] == 0
    scheduler = diffusers.DDIMScheduler(
        num_train_timesteps=count, beta_schedule=name, rescale_betas_zero_snr=rescaled, **options
    )
    assert len(schedule) == count and schedule.alphas_cumprod.dtype == torch.float64
    torch.testing.assert_close(schedule.alphas_cumprod.float(), scheduler.alphas_cumprod, rtol=2e-3, atol=2e-6)


def test_the_first_values_of_the_linear_schedule() -> None:
    step = (0.02 - 0.0001) / 999
    expected = [0.9999, 0.9999 * (0.9999 - step), 0.9999 * (0.9999 - step) * (0.9999 - 2 * step)]
    assert Schedule.linear().alphas_cumprod[:3].tolist() == pytest.approx(expected, rel=1e-14)


@given(st.lists(st.floats(1e-4, 0.9), min_size=2, max_size=40))
def test_a_rescaled_schedule_keeps_its_first_value_and_ends_in_noise(betas: list[float]) -> None:
    schedule = Schedule.from_betas(betas)
    rescaled = schedule.with_zero_terminal_snr().alphas_cumprod
    assert rescaled[0] == pytest.approx(float(schedule.alphas_cumprod[0])) and rescaled[-1] == 0
    roots, before = rescaled.sqrt(), schedule.alphas_cumprod.sqrt()
    ratios = roots.diff() / before.diff()  # a shift and a scale change all differences by one factor
    torch.testing.assert_close(ratios, ratios[0].expand_as(ratios), rtol=1e-6, atol=0)


@pytest.mark.parametrize("total", [1000, 50, 37])
def test_spacings_are_those_of_diffusers(total: int) -> None:
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=total)
    functions = {"leading": leading, "trailing": trailing, "linspace": linspace}
    for name, function in functions.items():
        scheduler.register_to_config(timestep_spacing=name)
        for count in range(1, total + 1, 1 if total < 100 else 7):
            scheduler.set_timesteps(count)
            chosen = function(count, num_train_timesteps=total)
            assert len(chosen) == count and all(isinstance(timestep, int) for timestep in chosen)
            # diffusers gives one more than was asked for, timestep -1, where rounding errors add up
            assert chosen == scheduler.timesteps.tolist()[:count]


def test_spacings_of_ten_steps() -> None:
    assert leading(10) == list(range(900, -1, -100))
    assert leading(10, offset=1) == list(range(901, 0, -100))
    assert trailing(10) == list(range(999, 0, -100))
    assert linspace(10) == list(range(999, -1, -111))
    assert linspace_exact(3, num_train_timesteps=1100) == [1099, 549.5, 0]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [999]), (2, [999, 499]), (4, [999, 759, 499, 259]), (3, [999, 679, 339])]
)
def test_timesteps_of_latent_consistency(count: int, expected: list[int]) -> None:
    assert lcm_spaced(count) == expected


@given(st.integers(1, 50), st.floats(0.05, 1.0), st.sampled_from([50, 40, 10, 7]))
def test_timesteps_of_latent_consistency_are_those_of_diffusers(count: int, strength: float, original: int) -> None:
    count = min(count, max(1, int(original * strength)))
    if int(original * strength) == 0:
        strength = 1.0
    scheduler = diffusers.LCMScheduler()
    scheduler.set_timesteps(count, original_inference_steps=original, strength=strength)
    assert lcm_spaced(count, original_steps=original, strength=strength) == scheduler.timesteps.tolist()


@given(st.integers(1, 1000), st.floats(0.2, 12.0))
def test_timesteps_of_flows_fall_from_noise_alone(count: int, shift: float) -> None:
    chosen = flow_spaced(count, shift=shift)
    assert len(chosen) == count and chosen[0] == pytest.approx(1000)
    assert all(later < earlier for earlier, later in pairwise(chosen))
    assert chosen[-1] > 0


@given(st.integers(2, 200), st.data())
def test_noise_levels_of_consistency_models(num_levels: int, data: st.DataObject) -> None:
    level = data.draw(st.integers(0, num_levels - 1))
    ends = karras_sigmas([0, num_levels - 1], num_levels=num_levels, sigma_min=0.01, sigma_max=50.0)
    assert ends == pytest.approx([50.0, 0.01])
    [sigma] = karras_sigmas([level], num_levels=num_levels, sigma_min=0.01, sigma_max=50.0)
    line = np.interp(level, [0, num_levels - 1], [50.0 ** (1 / 7), 0.01 ** (1 / 7)])  # σ^(1/7) is linear in the index
    assert sigma ** (1 / 7) == pytest.approx(float(line)) and math.isfinite(sigma)
