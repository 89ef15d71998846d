"""Causal convolutions with a state, and their gradients, against torch's own convolution in float64."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.causal_conv import causal_conv

Inputs = list[Tensor | None]


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool) -> Tensor:
    before = x.new_zeros(x.shape[0], weight.shape[1] - 1, x.shape[2]) if initial is None else initial
    inputs = torch.cat((before, x), 1).mT
    y = F.conv1d(inputs, weight[:, None], bias, groups=x.shape[2]).mT
    return F.silu(y) if silu else y


def inputs(B: int, L: int, C: int, K: int, optional: bool = True, seed: int = 0) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    return [draw(B, L, C), draw(C, K), draw(C) if optional else None, draw(B, K - 1, C) if optional else None]


def check(x: Inputs, silu: bool) -> None:
    exact = [None if part is None else part.double().requires_grad_() for part in x]
    leaves = [None if part is None else part.clone().requires_grad_() for part in x]
    wanted, (found, _) = by_torch(*exact, silu), causal_conv(*leaves, silu=silu)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(wanted.shape)
    pairs: Any = [[part for part in parts if part is not None and part.numel()] for parts in (leaves, exact)]
    got = torch.autograd.grad((found * weight).sum(), pairs[0])
    right = torch.autograd.grad((wanted * weight).sum(), pairs[1])
    for one, other in zip(got, right, strict=True):
        assert float((one.double() - other).norm()) < 1e-5 * max(1.0, float(other.norm()))


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 130, 20, 4), (1, 3, 33, 4), (1, 64, 16, 2), (2, 66, 5, 7)])
def test_is_torchs_own_in_double(backend: str, shape: tuple[int, int, int, int], optional: bool, silu: bool) -> None:
    check(inputs(*shape, optional), silu)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.integers(1, 3), st.integers(1, 140), st.integers(1, 40), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_of_any_shape(kernels: Library, B: int, L: int, C: int, K: int, optional: bool, seed: int) -> None:
    check(inputs(B, L, C, K, optional, seed), True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.integers(1, 70), min_size=2, max_size=6), st.booleans())
def test_how_tokens_are_split_does_not_show(kernels: Library, lengths: list[int], one: bool) -> None:
    lengths = [1] * len(lengths) if one else lengths
    x, weight, bias, initial = inputs(2, sum(lengths), 20, 4)
    whole, whole_state = causal_conv(x, weight, bias, initial)
    parts, state = [], initial
    for part in x.split(lengths, 1):
        out, state = causal_conv(part, weight, bias, state)
        parts.append(out)
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(state, whole_state)
    assert torch.equal(state, torch.cat((initial, x), 1)[:, -3:])


def test_threads_do_not_show(kernels: Library) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            leaves = [part.requires_grad_() for part in inputs(2, 3000, 150, 4)]
            out, _ = causal_conv(*leaves)
            found.append([out, *torch.autograd.grad(out.sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_bf16_is_rounded_once(backend: str) -> None:
    x, weight, bias, initial = inputs(2, 70, 40, 4)
    x, initial = x.bfloat16(), initial.bfloat16()
    out, state = causal_conv(x, weight, bias, initial)
    assert out.dtype is state.dtype is torch.bfloat16
    assert torch.equal(out, causal_conv(x.float(), weight, bias, initial.float())[0].bfloat16())


def test_the_last_state_has_gradients() -> None:
    x, weight, bias, initial = (part.requires_grad_() for part in inputs(1, 2, 3, 4))
    _, state = causal_conv(x, weight, bias, initial)
    of_x, of_initial = torch.autograd.grad(state.sum(), (x, initial))
    assert of_x.eq(1).all()
    assert of_initial.sum((0, 2)).tolist() == [0, 0, 3]


def test_rows_that_lie_apart(backend: str) -> None:
    x, weight, bias, initial = inputs(2, 30, 20, 4)
    part = torch.cat((x, x), -1)[..., :20]
    assert torch.equal(causal_conv(part, weight, bias, initial)[0], causal_conv(x, weight, bias, initial)[0])


def test_gradients_in_double() -> None:
    exact = [part.double().requires_grad_() for part in inputs(2, 5, 3, 4)]
    torch.autograd.gradcheck(causal_conv, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_is_an_operator_of_torch(dtype: torch.dtype) -> None:
    given = [part.to(dtype).requires_grad_() for part in inputs(2, 9, 20, 4)]
    torch.library.opcheck(torch.ops.whet.causal_conv.default, (*given, True))
    torch.library.opcheck(torch.ops.whet.causal_conv.default, (given[0].detach(), given[1].detach(), None, None, False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((0, torch.zeros(3, 4)), r"x is \[B, L, C\]"),
        ((1, torch.zeros(21, 4)), r"weight of a convolution of 20 channels with 4 taps, batch 2, is \[20, 4\]"),
        ((2, torch.zeros(19)), r"bias .* is \[20\]"),
        ((3, torch.zeros(2, 4, 20)), r"initial .* is \[2, 3, 20\]"),
        ((0, torch.zeros(2, 9, 20, dtype=torch.int32)), "floating type"),
    ],
)
def test_what_does_not_fit_is_refused(backend: str, change: tuple[int, Tensor], said: str) -> None:
    x = inputs(2, 9, 20, 4)
    x[change[0]] = change[1]
    with pytest.raises(InputsError, match=said):
        causal_conv(*x)
