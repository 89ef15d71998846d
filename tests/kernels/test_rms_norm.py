"""The decoder's normalisation, as a C function, against torch in float64."""

import pytest
import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.dispatch import pointer

EPS = 1e-5
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 100, 1000]


def rms_norm(kernels: Library, x_MD: Tensor, weight_D: Tensor, eps: float = EPS) -> Tensor:
    y_MD = torch.full_like(x_MD, torch.nan)
    kernels.functions.whet_rms_norm(
        pointer(x_MD), None, pointer(weight_D), *x_MD.shape, eps, None, pointer(y_MD)
    )  # fmt: skip
    return y_MD


def add_rms_norm(kernels: Library, x_MD: Tensor, added_MD: Tensor, weight_D: Tensor) -> tuple[Tensor, Tensor]:
    sum_MD, y_MD = torch.full_like(x_MD, torch.nan), torch.full_like(x_MD, torch.nan)
    tensors = (sum_MD, y_MD)
    kernels.functions.whet_rms_norm(
        pointer(x_MD), pointer(added_MD), pointer(weight_D), *x_MD.shape, EPS, *map(pointer, tensors)
    )
    return tensors


def normalised(x_MD: Tensor, weight_D: Tensor, eps: float = EPS) -> Tensor:
    return torch.nn.functional.rms_norm(x_MD.double(), weight_D.shape, weight_D.double(), eps)


@pytest.mark.parametrize("D", SIZES)
def test_is_torchs_own_in_double(kernels: Library, D: int) -> None:
    x, added, weight_D = torch.randn(5, D) * 3, torch.randn(5, D), torch.rand(D) + 0.5
    y = rms_norm(kernels, x, weight_D)
    torch.testing.assert_close(y.double(), normalised(x, weight_D), rtol=2e-6, atol=1e-7)
    total, y = add_rms_norm(kernels, x, added, weight_D)
    assert torch.equal(total, x + added)
    torch.testing.assert_close(y.double(), normalised(x + added, weight_D), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.1])
def test_epsilon_stands_beside_the_mean_square(kernels: Library, eps: float) -> None:
    x, weight_D = torch.randn(3, 40) * 1e-2, torch.ones(40)
    y = rms_norm(kernels, x, weight_D, eps)
    torch.testing.assert_close(y.double(), normalised(x, weight_D, eps), rtol=2e-6, atol=1e-7)


def test_rows_of_zeros_stay_zeros(kernels: Library) -> None:
    assert rms_norm(kernels, torch.zeros(2, 20), torch.ones(20)).eq(0).all()


def test_a_row_does_not_depend_on_its_company(kernels: Library) -> None:
    x, weight_D = torch.randn(50, 70), torch.rand(70)
    alone = torch.cat([rms_norm(kernels, row[None].clone(), weight_D) for row in x])
    assert torch.equal(rms_norm(kernels, x, weight_D), alone)
