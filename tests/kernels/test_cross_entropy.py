"""Cross-entropy with its gradient in place of the logits, against torch in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.cross_entropy import add_, cross_entropy_, write_gradients_

INF, NAN = float("inf"), float("nan")
IGNORED = -1


def expected(logits_CV: Tensor, target_C: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return torch's losses and gradients in float64."""
    exact = logits_CV.clone().double().requires_grad_()
    loss_C = F.cross_entropy(exact, target_C, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none")
    (gradient_CV,) = torch.autograd.grad(loss_C.sum(), exact)
    return loss_C.detach(), gradient_CV


def check(logits_CV: Tensor, target_C: Tensor, smoothing: float = 0.0, scale: float = 1.0) -> None:
    wanted_C, gradient_CV = expected(logits_CV, target_C, smoothing)
    found_CV = logits_CV.clone()
    found_C = write_gradients_(found_CV, target_C, smoothing, scale)
    assert found_C.dtype is torch.promote_types(logits_CV.dtype, torch.float32)
    torch.testing.assert_close(found_C.double(), wanted_C, rtol=1e-6, atol=2e-6, equal_nan=True)
    # A gradient of bfloat16 is rounded once, to half a unit in the last place of 8 bits.
    rtol = 2**-8 if logits_CV.dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(found_CV.double(), gradient_CV * scale, rtol=rtol, atol=1e-7 * scale, equal_nan=True)


DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_torchs_own_in_double_for_every_small_size(backend: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for V in (*range(1, 35), 63, 64, 65, 129):
        logits_CV = (torch.randn(5, V, generator=generator) * 4).to(dtype)
        target_C = torch.randint(0, V, (5,), generator=generator)
        target_C[3] = IGNORED
        check(logits_CV, target_C)
        check(logits_CV, target_C, smoothing=0.1, scale=0.25)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1023, 1025, 32_000, 128_256])
def test_is_torchs_own_in_double_for_large_vocabularies(backend: str, dtype: torch.dtype, V: int) -> None:
    generator = torch.Generator().manual_seed(V)
    logits_CV = torch.randn(4, V, generator=generator) * torch.tensor([[0.01], [1.0], [8.0], [60.0]])
    target_C = torch.tensor([0, V - 1, V // 2, 7])
    check(logits_CV.to(dtype), target_C)
    check(logits_CV.to(dtype), target_C, smoothing=0.2, scale=1 / 2048)


@given(
    logits=st.lists(st.sampled_from([-INF, -1e30, -104.0, -3.0, 0.0, 1.5, 88.0, 1e30]), min_size=2, max_size=40),
    target=st.integers(0, 39),
    smoothing=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_is_torchs_own_among_far_and_infinite_logits(
    backend: str, logits: list[float], target: int, smoothing: float
) -> None:
    logits_CV = torch.tensor([logits])
    if smoothing and -INF in logits:
        smoothing = 0.0  # the loss is infinite, and torch's gradient NaN
    check(logits_CV, torch.tensor([target % len(logits)]), smoothing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [NAN, -NAN, INF])
@pytest.mark.parametrize("place", [0, 20, 69])
def test_what_is_no_number_is_not_hidden(backend: str, dtype: torch.dtype, odd: float, place: int) -> None:
    logits_CV = torch.zeros(3, 70, dtype=dtype)
    logits_CV[1, place] = odd
    loss_C = write_gradients_(logits_CV, torch.tensor([1, 2, 3]))
    assert loss_C.isnan().tolist() == [False, True, False]
    assert logits_CV.isnan().all(1).tolist() == [False, True, False]


def test_rows_that_count_nothing_are_zeroed_whatever_they_hold(backend: str) -> None:
    logits_CV = torch.tensor([[NAN, 1.0], [INF, 1.0], [0.0, 1.0]])
    assert write_gradients_(logits_CV, torch.full((3,), IGNORED), scale=NAN).tolist() == [0, 0, 0]
    assert logits_CV.eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_company_or_on_threads(kernels: Library, dtype: torch.dtype) -> None:
    logits_CV, target_C = torch.randn(40, 5000).to(dtype), torch.randint(0, 5000, (40,))
    rows = [logits_CV[i : i + 1].clone() for i in range(40)]
    losses = [write_gradients_(row, target_C[i : i + 1]) for i, row in enumerate(rows)]
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            all_CV = logits_CV.clone()
            assert torch.equal(write_gradients_(all_CV, target_C), torch.cat(losses))
            assert torch.equal(all_CV, torch.cat(rows))
    finally:
        torch.set_num_threads(before)


def test_without_openmp_the_pool_computes_the_same(kernels: Library) -> None:
    logits_CV, target_C = torch.randn(40, 5000), torch.randint(0, 5000, (40,))
    alone_CV = logits_CV.clone()
    try:
        kernels.functions.whet_use_openmp(None)
        loss_C = write_gradients_(alone_CV, target_C)
    finally:
        kernels.use_openmp()
    assert torch.equal(write_gradients_(logits_CV, target_C), loss_C)
    assert torch.equal(logits_CV, alone_CV)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (100, 333), (700, 1000)])
def test_sums_of_a_wider_type(backend: str, shape: tuple[int, int]) -> None:
    total, x = torch.randn(shape), torch.randn(shape).bfloat16()
    wanted = total + x.float()
    add_(total, x)
    assert torch.equal(total, wanted)
    strided = torch.randn(shape[::-1]).T
    wanted = strided + x.float()
    add_(strided, x)
    assert torch.equal(strided, wanted)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_is_an_operator_of_torch(dtype: torch.dtype) -> None:
    sample = (torch.randn(4, 50).to(dtype), torch.tensor([1, IGNORED, 49, 0]), 0.1, 0.5)
    torch.library.opcheck(torch.ops.whet.cross_entropy_.default, sample)
    logits_CV = sample[0].clone()
    assert torch.equal(cross_entropy_(*sample), write_gradients_(logits_CV, *sample[1:]))
    assert torch.equal(sample[0], logits_CV)


def test_float64_stays_float64() -> None:
    logits_CV, target_C = torch.randn(6, 40, dtype=torch.float64), torch.tensor([0, 1, IGNORED, 3, 39, 5])
    wanted_C, gradient_CV = expected(logits_CV, target_C, 0.1)
    torch.testing.assert_close(write_gradients_(logits_CV, target_C, 0.1), wanted_C, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(logits_CV, gradient_CV, rtol=1e-13, atol=1e-16)


def test_no_rows(backend: str) -> None:
    assert write_gradients_(torch.empty(0, 9), torch.empty(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("logits", "target", "said"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64), r"logits are contiguous rows .* not torch.float32 \[4\]"),
        (torch.zeros(3, 4).T, torch.zeros(4, dtype=torch.int64), r"with strides \[1, 4\]"),
        (torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "floating type"),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int32), r"int64 \[3\], contiguous, not torch.int32 \[3\]"),
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), r"not torch.int64 \[2\]"),
        (torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64), "3 rows of 0 columns"),
    ],
)
def test_what_does_not_fit_is_refused(backend: str, logits: Tensor, target: Tensor, said: str) -> None:
    with pytest.raises(InputsError, match=said):
        write_gradients_(logits, target)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_a_target_that_is_no_column_is_refused(backend: str, dtype: torch.dtype) -> None:
    logits: Any = torch.zeros(3, 4, dtype=dtype)
    with pytest.raises(IndexError, match="target 4 is out of bounds for 4 columns"):
        write_gradients_(logits, torch.tensor([0, 4, 1]))
    assert logits.eq(0).all()
