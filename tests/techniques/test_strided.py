"""Views of native programs, against torch's own views of the same numbers."""

import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from whet.core.artefact.native.sizes import Sizes
from whet.errors import TargetError
from whet.techniques.rewriting.native_program.strided import Strided, whole
from whet.techniques.rewriting.native_program.symbolic import divides, product, same, written

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def numbers(x: Strided, memory: Tensor) -> Tensor:
    return memory.as_strided(x.shape, x.strides, x.offset)


@st.composite
def viewed(draw: st.DrawFn) -> tuple[Strided, Tensor, Tensor]:
    """A view by several operations, the same by torch, and their memory."""
    shape = draw(SHAPES)
    memory = torch.arange(math.prod(shape))
    x, tensor = whole(0, shape), memory.view(shape)
    for _ in range(draw(st.integers(0, 4))):
        dim = draw(st.integers(0, max(0, tensor.dim() - 1)))
        match draw(st.sampled_from(("permute", "slice", "select", "unsqueeze", "expand"))):
            case "permute":
                order = draw(st.permutations(range(tensor.dim())))
                x, tensor = x.permuted(order), tensor.permute(order)
            case "slice" if tensor.dim():
                start = draw(st.integers(0, tensor.shape[dim] - 1))
                part = tensor[(slice(None),) * dim + (slice(start, None, 2),)]
                x, tensor = x.sliced(dim, start, part.shape[dim], 2), part
            case "select" if tensor.dim() > 1:
                x, tensor = x.selected(dim, tensor.shape[dim] - 1), tensor.select(dim, -1)
            case "unsqueeze" if tensor.dim() < 5:
                x, tensor = x.unsqueezed(dim), tensor.unsqueeze(dim)
            case "expand" if 1 in tensor.shape:
                wanted = (2, *(3 if size == 1 else size for size in tensor.shape))
                x, tensor = x.expanded(wanted), tensor.expand(wanted)
    return x, tensor, memory


@given(found=viewed())
def test_views_are_those_of_torch(found: tuple[Strided, Tensor, Tensor]) -> None:
    x, tensor, memory = found
    assert torch.equal(numbers(x, memory), tensor)
    assert x.is_contiguous == tensor.is_contiguous()


@given(found=viewed(), data=st.data())
def test_reshapes_are_views_where_torchs_are(found: tuple[Strided, Tensor, Tensor], data: st.DataObject) -> None:
    x, tensor, memory = found
    factors = [prime for prime in (2, 2, 2, 3, 3, 3) if tensor.numel() % prime == 0]
    shape, left = [], tensor.numel()
    for prime in data.draw(st.permutations(factors)):
        if left % prime == 0:
            shape.append(prime)
            left //= prime
    shape = data.draw(st.permutations([*shape, left]))
    view = x.reshaped(shape)
    if view is not None:
        assert torch.equal(numbers(view, memory), tensor.reshape(shape))
        return
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        tensor.view(shape)


S, T = sympy.symbols("s0 s1", integer=True, positive=True)


def test_reshapes_with_free_sizes() -> None:
    heads = whole(0, (S, T, 12 * 64)).reshaped((S, T, 12, 64))
    assert heads is not None
    assert heads.strides == (768 * T, 768, 64, 1)
    swapped = heads.transposed(1, 2)
    assert swapped.reshaped((S, 12, T * 64)) is None
    assert swapped.reshaped((S * 12, T, 64)) is None
    rows = swapped.transposed(1, 2).reshaped((S * T, 768))
    assert rows is not None
    assert [same(a, b) for a, b in zip(rows.strides, (768, 1), strict=True)] == [True, True]


def test_sizes_that_may_differ_are_not_taken_for_equal() -> None:
    assert not same(S, T)
    assert same(S * (T + 1), S * T + S)
    assert divides(S, S * T) and divides(4, 8 * S) and not divides(S, T) and not divides(3, 8)
    with pytest.raises(TargetError, match="cannot tell whether the sizes s0 and s1 are equal"):
        whole(0, (S, 4)).expanded((T, 4))


@given(a=st.integers(1, 40), b=st.integers(1, 40))
def test_sizes_are_written_as_arithmetic(a: int, b: int) -> None:
    values = {"s0": a, "s1": b}
    for size in (S * T, S + 2 * T - 1, product((S, T, 3)), S**2 * 5, 7):
        assert Sizes(values)(written(size)) == sympy.sympify(size).subs({S: a, T: b})
