"""Normalisation and what is fused with it, against torch in float64."""

import pytest
import torch

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.linear import dequantise, linear, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.quantise import quantise_int8
from whet.kernels.rms_norm import add_rms_norm, add_rms_norm_quantise, rms_norm, rms_norm_quantise

EPS = 1e-5
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 100, 1000]


def normalised(x: torch.Tensor, weight_D: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x.double(), weight_D.shape, weight_D.double(), eps)


def test_is_torchs_own_in_double(backend: str) -> None:
    for D in SIZES:
        x, added, weight_D = torch.randn(5, D) * 3, torch.randn(5, D), torch.rand(D) + 0.5
        torch.testing.assert_close(rms_norm(x, weight_D, EPS).double(), normalised(x, weight_D), rtol=2e-6, atol=1e-7)
        total, y = add_rms_norm(x, added, weight_D, EPS)
        assert torch.equal(total, x + added)
        torch.testing.assert_close(y.double(), normalised(x + added, weight_D), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.1])
def test_epsilon_stands_beside_the_mean_square(backend: str, eps: float) -> None:
    x, weight_D = torch.randn(3, 40) * 1e-2, torch.ones(40)
    torch.testing.assert_close(rms_norm(x, weight_D, eps).double(), normalised(x, weight_D, eps), rtol=2e-6, atol=1e-7)


def test_quantised_is_within_half_a_step(backend: str) -> None:
    for D in SIZES:
        x, added, weight_D = torch.randn(5, D), torch.randn(5, D), torch.rand(D) + 0.5
        q, scale = rms_norm_quantise(x, weight_D, EPS)
        total, more_q, more_scale = add_rms_norm_quantise(x, added, weight_D, EPS)
        assert torch.equal(total, x + added)
        for values, scales, source in ((q, scale, x), (more_q, more_scale, x + added)):
            wanted = normalised(source, weight_D)
            assert values.dtype == torch.int8 and scales.shape == (5,)
            assert values.abs().amax(dim=1).eq(127).all()
            off = (values.double() * scales.double()[:, None] - wanted).abs()
            assert bool((off <= scales.double()[:, None] * 0.5001).all())


def test_quantised_goes_into_an_integer_product(backend: str) -> None:
    """What a linear layer makes of the normalised row by itself."""
    x, norm_D, weight_NK = torch.randn(20, 96), torch.rand(96), torch.randn(48, 96)
    q, scale_M = rms_norm_quantise(x, norm_D, EPS)
    made = quantise_int8(weight_NK)
    y = torch._int_mm(q, made.values_NK.T).double() * scale_M[:, None] * made.scale_N
    torch.testing.assert_close(
        linear(rms_norm(x, norm_D, EPS), pack_weights(weight_NK, Kind.S8)).double(), y, rtol=0, atol=2e-2
    )
    packed = pack_weights(weight_NK, Kind.S8)
    assert torch.equal(dequantise(Kind.S8, packed.data, packed.scale, 48, 96), made.dequantise())


def test_rows_of_zeros_stay_zeros(backend: str) -> None:
    weight_D = torch.ones(20)
    assert rms_norm(torch.zeros(2, 20), weight_D, EPS).eq(0).all()
    q, scale = rms_norm_quantise(torch.zeros(2, 20), weight_D, EPS)
    assert q.eq(0).all() and scale.eq(0).all()
    assert rms_norm(torch.empty(0, 20), weight_D, EPS).shape == (0, 20)


def test_keeps_the_type_and_the_leading_dimensions(backend: str) -> None:
    x, added, weight_D = torch.randn(2, 3, 40).bfloat16(), torch.randn(2, 3, 40).bfloat16(), torch.rand(40).bfloat16()
    y = rms_norm(x, weight_D, EPS)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    torch.testing.assert_close(y.double(), normalised(x, weight_D), rtol=2**-8, atol=1e-6)
    total, _ = add_rms_norm(x, added, weight_D, EPS)
    assert torch.equal(total, x + added)
    _, q, scale = add_rms_norm_quantise(x, added, weight_D, EPS)
    assert (q.shape, scale.shape, scale.dtype) == (x.shape, (2, 3), torch.float32)
    assert torch.equal(rms_norm(x.transpose(0, 1), weight_D, EPS), y.transpose(0, 1))


def test_a_row_does_not_depend_on_its_company(kernels: Library) -> None:
    x, weight_D = torch.randn(50, 70), torch.rand(70)
    alone = torch.cat([rms_norm(row[None], weight_D, EPS) for row in x])
    assert torch.equal(rms_norm(x, weight_D, EPS), alone)


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "rms_norm_quantise", "add_rms_norm_quantise"])
def test_is_an_operator_of_torch(kernels: Library, name: str) -> None:
    x = [torch.randn(3, 40), torch.randn(3, 40)] if name.startswith("add") else [torch.randn(3, 40)]
    torch.library.opcheck(getattr(torch.ops.whet, name).default, (*x, torch.rand(40), EPS))


def test_what_does_not_fit_is_refused(backend: str) -> None:
    x, weight_D = torch.randn(3, 40), torch.rand(40)
    with pytest.raises(InputsError, match=r"the weight of rows of 40 is \[40\], not \[39\]"):
        rms_norm(x, weight_D[:39], EPS)
    with pytest.raises(InputsError, match="what is added"):
        add_rms_norm(x, torch.randn(4, 40), weight_D, EPS)
    with pytest.raises(InputsError, match="what is added"):
        add_rms_norm(x, x.bfloat16(), weight_D, EPS)
    with pytest.raises(InputsError, match=r"not torch.int64 \[3, 40\]"):
        rms_norm(x.long(), weight_D, EPS)
