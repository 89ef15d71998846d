"""Stochastic rounding to bfloat16: the kernel against its rule in numpy, and what must hold of every result."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.kernels import stochastic_rounding
from whet.kernels.dispatch import kernels
from whet.kernels.stochastic_rounding import rounded_stochastically


def mixed(h: np.ndarray) -> np.ndarray:
    """The finaliser of MurmurHash3 on uint32."""
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def by_the_rule(x: np.ndarray, seed: int, salt: int) -> np.ndarray:
    """Return the bits in bfloat16 of finite float32 numbers."""
    place = np.arange(x.size, dtype=np.uint32) + np.uint32(seed % 2**32)
    noise = mixed(mixed(place) ^ np.uint32(salt % 2**32)) >> np.uint32(16)
    return ((x.reshape(-1).view(np.uint32) + noise) >> np.uint32(16)).astype(np.uint16)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (257, 129), (16384,), (16385,), (100, 2000)])
def test_the_kernel_follows_the_rule(shape: tuple[int, ...]) -> None:
    if kernels() is None:
        pytest.skip("no compiler here")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    seed, salt = torch.randint(-(2**31), 2**31, (2,), generator=torch.Generator().manual_seed(1)).tolist()
    found = rounded_stochastically(x, torch.Generator().manual_seed(1))
    assert found.dtype is torch.bfloat16 and found.shape == x.shape
    with np.errstate(over="ignore"):
        expected = by_the_rule(x.numpy(), seed, salt)
    np.testing.assert_array_equal(found.reshape(-1).view(torch.uint16).numpy(), expected)


@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
    has_kernel=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_number_becomes_one_of_its_neighbours(values: list[float], seed: int, has_kernel: bool) -> None:
    x = torch.tensor(values)
    generator = torch.Generator().manual_seed(seed)
    found = rounded_stochastically(x, generator) if has_kernel else stochastic_rounding._rounded_in_torch(x, generator)
    bits = x.view(torch.int32)
    below = (bits & -(2**16)).view(torch.float32)
    above = torch.where(bits & 0xFFFF != 0, (bits & -(2**16)) + 2**16, bits).view(torch.float32)
    assert bool(((found.float() == below) | (found.float() == above)).all())


@pytest.mark.parametrize("value", [1.0 + 2**-9, -3.14159, 1e-30, 2**-140])
def test_the_result_is_right_on_average(value: float) -> None:
    x = torch.full((400_000,), value)
    found = rounded_stochastically(x, torch.Generator().manual_seed(0)).double()
    low, high = found.min().item(), found.max().item()
    exact = float(x[0])
    odds = (exact - low) / (high - low)
    share = (found == high).double().mean().item()
    assert abs(share - odds) < 5 * (0.25 / x.numel()) ** 0.5


def test_calls_draw_other_noise_and_generators_tell_it() -> None:
    x = torch.randn(1000)
    generator = torch.Generator().manual_seed(3)
    first, second = rounded_stochastically(x, generator), rounded_stochastically(x, generator)
    assert not torch.equal(first, second)
    torch.testing.assert_close(rounded_stochastically(x, torch.Generator().manual_seed(3)), first, rtol=0, atol=0)
    changes = (first != second).double().mean().item()
    assert 0.2 < changes < 0.45, "a third of all pairs of independent roundings differ"


def test_what_is_no_number_stays_so() -> None:
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    odd = torch.cat([odd, torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)])
    found = rounded_stochastically(odd, torch.Generator())
    torch.testing.assert_close(found.float(), odd, equal_nan=True)
    assert rounded_stochastically(torch.empty(0), torch.Generator()).shape == (0,)
    transposed = torch.randn(4, 6).T
    assert rounded_stochastically(transposed, torch.Generator()).shape == (6, 4)
