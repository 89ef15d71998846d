"""Triton's causal convolution against torch's own in float64: on a GPU, or by Triton's interpreter on a CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.kernels.causal_conv import causal_conv

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.fixture
def place(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device. A program takes so little that small inputs have several chunks and blocks."""
    from whet.kernels.causal_conv import cuda

    monkeypatch.setattr(cuda, "TOKENS", 8)
    monkeypatch.setattr(cuda, "BLOCK", 8)
    return device


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> Tensor:
    before = x.new_zeros(x.shape[0], weight.shape[1] - 1, x.shape[2]) if initial is None else initial
    y = F.conv1d(torch.cat((before, x), 1).mT, weight[:, None], bias, groups=x.shape[2]).mT
    return F.silu(y) if silu else y


def inputs(B: int, L: int, C: int, K: int, optional: bool) -> list[Tensor | None]:
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    return [draw(B, L, C), draw(C, K), draw(C) if optional else None, draw(B, K - 1, C) if optional else None]


@pytest.mark.parametrize(
    ("shape", "optional", "silu"),
    [
        ((1, 1, 1, 1), True, True),
        ((2, 9, 5, 4), True, True),
        ((1, 2, 9, 4), True, False),
        ((1, 17, 3, 2), False, True),
        ((1, 8, 8, 7), False, False),
    ],
)
def test_is_torchs_own_in_double(place: str, shape: tuple[int, int, int, int], optional: bool, silu: bool) -> None:
    x = inputs(*shape, optional)
    exact = [None if part is None else part.double().requires_grad_() for part in x]
    leaves = [None if part is None else part.to(place).requires_grad_() for part in x]
    wanted, (found, state) = by_torch(*exact, silu), causal_conv(*leaves, silu=silu)
    assert state.shape == (shape[0], shape[3] - 1, shape[2])
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    pairs = [[part for part in parts if part is not None and part.numel()] for parts in (leaves, exact)]
    got = torch.autograd.grad((found * weight.to(place)).sum(), pairs[0])
    right = torch.autograd.grad((wanted * weight).sum(), pairs[1])
    for one, other in zip(got, right, strict=True):
        assert float((one.cpu().double() - other).norm()) < 1e-5 * max(1.0, float(other.norm()))


def test_tokens_can_come_in_parts(place: str) -> None:
    x, weight, bias, initial = (part.to(place) for part in inputs(1, 11, 5, 4, True))
    whole, whole_state = causal_conv(x, weight, bias, initial)
    parts, state = [], initial
    for part in x.split([9, 1, 1], 1):
        out, state = causal_conv(part, weight, bias, state)
        parts.append(out)
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(state, whole_state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_that_lie_apart(place: str, dtype: torch.dtype) -> None:
    x, weight, bias, initial = (part.to(place) for part in inputs(2, 9, 5, 4, True))
    part = torch.cat((x, x), -1).to(dtype)[..., :5].requires_grad_()
    out, _ = causal_conv(part, weight, bias, initial.to(dtype))
    wanted = by_torch(part.detach().double(), weight.double(), bias.double(), initial.to(dtype).double(), True)
    assert out.dtype is dtype
    assert torch.autograd.grad(out.sum(), part)[0].dtype is dtype
    # The interpreter cuts off what a GPU rounds to bfloat16.
    torch.testing.assert_close(out.double(), wanted, rtol=2**-7 if dtype is torch.bfloat16 else 2**-10, atol=1e-6)
