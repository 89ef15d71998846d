"""Packed linear layers, against exact sums over the numbers that the kernels see."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.linear import linear, linear_fp32, linear_int4, linear_int8, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.packed import PackedWeights
from whet.kernels.linear.quantise import quantise_int4, quantise_int8
from whet.kernels.linear.reference import linear_as_packed

SHAPES = [(1, 16, 32), (1, 1, 1), (2, 15, 31), (3, 37, 45), (7, 130, 100), (20, 64, 256), (197, 90, 96), (5, 1000, 160)]
SHAPES += [(13, 110, 96)]  # rows that share what is unpacked of int4
KINDS = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)


def relative(y: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((y - wanted).abs().max() / wanted.abs().max())


def linear_reference(
    x_MK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None, kind: Kind
) -> torch.Tensor:
    """Return float64 [M, N], with weights and activations rounded as in the kernel, and exact products and sums."""
    weight_NK = weight_NK.float()
    if kind is Kind.BF16:
        weight_NK = weight_NK.bfloat16()
    elif kind is not Kind.F32:
        weight_NK = (quantise_int8(weight_NK) if kind is Kind.S8 else quantise_int4(weight_NK)).dequantise()
    return linear_as_packed(x_MK, weight_NK.double(), None if bias_N is None else bias_N.double(), kind)


@KINDS
@pytest.mark.parametrize("has_bias", [False, True])
def test_is_the_exact_sum(backend: str, kind: Kind, has_bias: bool) -> None:
    for M, N, K in SHAPES:
        x_MK, weight_NK, bias_N = torch.randn(M, K), torch.randn(N, K), torch.randn(N) if has_bias else None
        y_MN = linear(x_MK, pack_weights(weight_NK, kind, bias_N))
        assert y_MN.shape == (M, N)
        assert relative(y_MN, linear_reference(x_MK, weight_NK, bias_N, kind)) < 1e-5, (M, N, K)


@KINDS
def test_rounding_costs_what_its_bits_say(kernels: Library, kind: Kind) -> None:
    """Against the product of the weights as they were."""
    x_MK, weight_NK = torch.randn(20, 512), torch.randn(300, 512)
    wanted = x_MK.double() @ weight_NK.double().T
    error = float((linear(x_MK, pack_weights(weight_NK, kind)) - wanted).norm() / wanted.norm())
    assert error < {Kind.F32: 1e-6, Kind.BF16: 3e-3, Kind.S8: 1.5e-2, Kind.S4: 0.12}[kind]


@pytest.mark.parametrize("num", [15, 17])
def test_a_bias_of_another_length_is_refused(num: int) -> None:
    with pytest.raises(RuntimeError, match="must match the existing size"):
        pack_weights(torch.randn(16, 32), Kind.F32, torch.zeros(num))


@KINDS
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(rows=st.lists(st.integers(0, 199), min_size=1, max_size=200))
def test_a_row_does_not_depend_on_its_company(kernels: Library, kind: Kind, rows: list[int]) -> None:
    torch.manual_seed(0)
    x_MK, weights = torch.randn(200, 72), pack_weights(torch.randn(70, 72), kind, torch.randn(70))
    alone = torch.cat([linear(row[None], weights) for row in x_MK])
    assert torch.equal(linear(x_MK[rows], weights), alone[rows])


@KINDS
def test_does_not_depend_on_threads(kernels: Library, kind: Kind) -> None:
    x_MK, weights = torch.randn(33, 256), pack_weights(torch.randn(1000, 256), kind)  # large enough for the pool
    results = []
    try:
        for num_threads in (1, 2, 4, 3, 1):
            kernels.set_threads(num_threads)
            results.append(linear(x_MK, weights))
    finally:
        kernels.set_threads(torch.get_num_threads())
    assert all(torch.equal(result, results[0]) for result in results)


@KINDS
@pytest.mark.parametrize(("N", "K"), [(1, 1), (16, 32), (37, 45), (130, 100), (2050, 33)])
def test_torch_packs_as_the_kernels_do(kernels: Library, kind: Kind, N: int, K: int) -> None:
    weight_NK, bias_N = torch.randn(N, K), torch.randn(N)
    by_kernel, by_torch = (PackedWeights(library, kind, weight_NK, bias_N) for library in (kernels, None))
    assert torch.equal(by_kernel.scale, by_torch.scale)
    weights = [packed.dequantised() for packed in (by_kernel, by_torch)]
    assert torch.equal(*weights)
    if kind is Kind.F32:
        assert torch.equal(weights[0], weight_NK)


def test_packed_weights_lie_in_large_pages(kernels: Library) -> None:
    for N in (1, 3000):
        weights = PackedWeights(kernels, Kind.S8, torch.randn(N, 1024))
        assert weights.data.data_ptr() % 2**21 == 0
        assert weights.num_bytes == weights.data.numel() == -(-N // 16) * 16 * 1024


def test_weights_outlive_what_packed_them(kernels: Library) -> None:
    weights = PackedWeights(kernels, Kind.S8, torch.eye(64))
    data, scale = weights.data, weights.scale
    del weights
    torch.testing.assert_close(linear_int8(torch.eye(64), data, scale, None, 64), torch.eye(64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_keeps_the_type_and_the_leading_dimensions(backend: str, dtype: torch.dtype) -> None:
    x, weights = torch.randn(2, 3, 40).to(dtype), pack_weights(torch.randn(20, 40), Kind.S8)
    y = linear(x, weights)
    assert (y.dtype, y.shape) == (dtype, (2, 3, 20))
    assert torch.equal(y.flatten(0, 1), linear(x.float().flatten(0, 1), weights).to(dtype))
    assert linear(x.transpose(0, 1), weights).equal(y.transpose(0, 1))  # not contiguous


def test_no_rows_and_rows_of_zeros(backend: str) -> None:
    for kind in Kind:
        weights = pack_weights(torch.randn(20, 40), kind, torch.arange(20.0))
        assert linear(torch.empty(0, 40), weights).shape == (0, 20)
        assert linear(torch.zeros(2, 40), weights).equal(torch.arange(20.0).expand(2, 20))


@KINDS
def test_is_an_operator_of_torch(kernels: Library, kind: Kind) -> None:
    weights = pack_weights(torch.randn(20, 40), kind, torch.randn(20))
    operator = getattr(torch.ops.whet, f"linear_{dict(zip(Kind, ('fp32', 'bf16', 'int8', 'int4'), strict=True))[kind]}")
    arguments = (torch.randn(3, 40), weights.data, weights.scale, weights.bias, 20)
    torch.library.opcheck(operator.default, arguments)
    with torch.device("meta"):
        meta = [argument.to("meta") if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    assert operator(*meta).shape == (3, 20)


def test_what_does_not_fit_is_refused(backend: str) -> None:
    weights = pack_weights(torch.randn(20, 40), Kind.S8, torch.randn(20))
    x_MK, data, scale, bias = torch.randn(3, 40), weights.data, weights.scale, weights.bias
    with pytest.raises(InputsError, match=r"kind S8 with 20 outputs, for 50 inputs, are 1664 bytes .* these are 1280"):
        linear(torch.randn(3, 50), weights)
    with pytest.raises(InputsError, match=r"bfloat16 or float16, not torch\.int64"):
        linear(torch.ones(3, 40, dtype=torch.int64), weights)
    with pytest.raises(InputsError, match="kind S4"):
        linear_int4(x_MK, data, scale, bias, 20)
    with pytest.raises(InputsError, match="the scale of packed weights with 20 outputs is float32"):
        linear_int8(x_MK, data, scale[:20], bias, 20)
    with pytest.raises(InputsError, match="the bias"):
        linear_int8(x_MK, data, scale, torch.randn(20), 20)
    with pytest.raises(InputsError, match=r"not torch\.float32 \[3, 0\]"):
        linear_fp32(torch.randn(3, 0), data, scale, None, 20)


@KINDS
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(backend: str, kind: Kind, poison: float) -> None:
    """Whole numbers hold no NaN, and maxima pass over one."""
    weights = pack_weights(torch.randn(20, 40), kind)
    for place in (0, 17, 39):
        x_MK = torch.randn(2, 40)
        x_MK[1, place] = poison
        y_MN = linear(x_MK, weights)
        assert y_MN[0].isfinite().all() and not y_MN[1].isfinite().any()
