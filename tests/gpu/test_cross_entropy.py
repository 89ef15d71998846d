"""The Triton kernel of cross-entropy against torch in float64: on a GPU, or by Triton's interpreter on a CPU.

tests/kernels/test_triton.py runs this file by the interpreter.
"""

import pytest
import torch
import torch.nn.functional as F

from whet.kernels.cross_entropy import write_gradients_

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("V", "smoothing", "scale"), [(1, 0.0, 1.0), (37, 0.1, 0.25), (4096, 0.0, 1.0), (9001, 0.2, 0.5)]
)
def test_is_torchs_own_in_double(
    device: str, interpreted: bool, dtype: torch.dtype, V: int, smoothing: float, scale: float
) -> None:
    generator = torch.Generator().manual_seed(V)
    logits_CV = (torch.randn(6, V, generator=generator) * 5).to(dtype)
    if V > 1:
        logits_CV[4, : V // 2] = float("-inf") if smoothing == 0 else -90.0
    target_C = torch.randint(V // 2, V, (6,), generator=generator)
    target_C[2] = -1
    exact = logits_CV.clone().double().requires_grad_()
    wanted_C = F.cross_entropy(exact, target_C, ignore_index=-1, label_smoothing=smoothing, reduction="none")
    (gradient_CV,) = torch.autograd.grad(wanted_C.sum(), exact)
    found_CV = logits_CV.to(device)
    found_C = write_gradients_(found_CV, target_C.to(device), smoothing, scale)
    assert found_C.dtype is torch.float32
    torch.testing.assert_close(found_C.cpu().double(), wanted_C.detach(), rtol=2e-6, atol=5e-6)
    bfloat16 = 2**-7 if interpreted else 2**-8  # the interpreter cuts off what a GPU rounds
    rtol = {torch.float32: 2e-5, torch.bfloat16: bfloat16, torch.float16: 2**-10}[dtype]
    atol = 2**-24 if dtype is torch.float16 else 1e-7
    torch.testing.assert_close(found_CV.cpu().double(), gradient_CV * scale, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
def test_what_is_no_number_is_not_hidden(device: str) -> None:
    from whet.kernels.cross_entropy.cuda import cross_entropy_in_triton_

    logits_CV = torch.zeros(5, 70, device=device)
    logits_CV[1, 3], logits_CV[2, 69] = float("nan"), float("inf")
    logits_CV[3] = float("nan")
    target_C = torch.tensor([1, 2, 3, -1, 70], device=device)
    found_C = cross_entropy_in_triton_(logits_CV, target_C, 0.0, 1.0)  # for the CPU's, 70 would be refused before
    assert found_C.isnan().tolist() == [False, True, True, False, True]
    assert logits_CV[1:3].isnan().all()
    assert logits_CV[3].eq(0).all()


def test_the_whole_loss_on_a_gpu(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a GPU")
    from whet.techniques.mechanisms.deferred_logits import DeferredLogits

    x, weight = torch.randn(300, 64, device=device), torch.randn(5000, 64, device=device) / 8
    target = torch.randint(0, 5000, (300,), device=device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    found = F.cross_entropy(DeferredLogits(x, weight, None, torch.float32, torch.float32), target, label_smoothing=0.1)
    expected = F.cross_entropy(F.linear(x, weight), target, label_smoothing=0.1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True):
        assert (a - b).norm() <= 1e-3 * b.norm()
