"""Weights in few bits: how far they may be from what they stand for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from whet.kernels.linear.quantise import GROUP_SIZE, quantise_int4, quantise_int8

Weights = NDArray[np.float32]
TINY = float(np.finfo(np.float32).tiny)


def weights() -> st.SearchStrategy[Weights]:
    values = st.floats(-(2.0**60), 2.0**60, width=32) | st.sampled_from([0.0, 1.0, -1.0, 2.0**100, 1e-30])
    return arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 70)), elements=values)


@given(weights())
def test_int8_is_within_half_a_step(values: Weights) -> None:
    weight_NK = torch.from_numpy(values)
    made = quantise_int8(weight_NK)
    assert made.values_NK.dtype == torch.int8 and made.values_NK.abs().max() <= 127
    off = (weight_NK.double() - made.values_NK.double() * made.scale_N.double()[:, None]).abs()
    assert bool((off <= made.scale_N.double()[:, None] * (0.5 + 1e-5)).all())
    largest_N = weight_NK.abs().amax(dim=1)
    assert bool((made.scale_N <= (largest_N / 127).clamp_min(TINY)).all())


@given(weights())
def test_int4_is_within_its_range_and_half_of_its_widest_step(values: Weights) -> None:
    weight_NK = torch.from_numpy(values)
    made = quantise_int4(weight_NK)
    assert made.values_NK.shape == weight_NK.shape
    assert made.ratio_NG.shape == (len(weight_NK), -(-weight_NK.shape[1] // GROUP_SIZE))
    assert int(made.values_NK.min()) >= -8 and int(made.values_NK.max()) <= 7
    assert int(made.ratio_NG.min()) >= 1 and int(made.ratio_NG.max()) <= 15
    # No output is worse, as a whole, than with one step for all its weights.
    off = weight_NK.double() - exact(made)
    one_step_N = weight_NK.double().abs().amax(dim=1).clamp_min(105 * TINY) / 7.5
    assert bool((off.square().mean(dim=1) <= (one_step_N * 0.5).square() * (1 + 1e-5)).all())


def exact(made: object) -> torch.Tensor:
    ratio_NK = made.ratio_NG.double().repeat_interleave(GROUP_SIZE, dim=1)[:, : made.values_NK.shape[1]]  # type: ignore[attr-defined]
    return made.values_NK.double() * ratio_NK * made.scale_N.double()[:, None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", ["normal", "heavy tails", "uniform", "different groups"])
def test_int4_is_about_as_good_as_a_free_scale_for_each_group(shape: str) -> None:
    """Whole-number scales of groups cost little beside what plain rounding to 4 bits costs."""
    generator = torch.Generator().manual_seed(0)
    weight_NK = torch.randn(64, 512, generator=generator)
    if shape == "heavy tails":
        weight_NK = weight_NK.sign() * weight_NK.abs() ** 1.7
    elif shape == "uniform":
        weight_NK = torch.rand(64, 512, generator=generator) - 0.5
    elif shape == "different groups":
        weight_NK *= torch.linspace(0.3, 1.0, 16).repeat_interleave(32)
    groups = weight_NK.double().unflatten(1, (-1, GROUP_SIZE))
    step = groups.abs().amax(dim=2, keepdim=True) / 7
    plain = (groups - (groups / step).round() * step).square().sum()
    ours = (weight_NK.double() - exact(quantise_int4(weight_NK))).square().sum()
    assert float(ours / plain) < 1.05


@pytest.mark.parametrize("quantise", [quantise_int8, quantise_int4])
def test_zeros_stay_zeros_and_an_outlier_stays_itself(quantise: object) -> None:
    weight_NK = torch.zeros(3, 45)
    weight_NK[1, 7] = 1e6
    weight_NK[2] = 1e-3
    weight_NK[2, 40] = -1e4
    made = quantise(weight_NK).dequantise()  # type: ignore[operator]
    assert made[0].eq(0).all()
    assert made[1].nonzero().tolist() == [[7]]
    torch.testing.assert_close(made[1, 7], weight_NK[1, 7], rtol=0.07, atol=0)
    torch.testing.assert_close(made[2, 40], weight_NK[2, 40], rtol=0.07, atol=0)
    assert made.isfinite().all()


def test_an_output_does_not_depend_on_the_others() -> None:
    weight_NK = torch.randn(10, 70) * torch.logspace(-3, 3, 10)[:, None]
    for quantise in (quantise_int8, quantise_int4):
        together = quantise(weight_NK).dequantise()
        assert torch.equal(together, torch.cat([quantise(row[None]).dequantise() for row in weight_NK]))
