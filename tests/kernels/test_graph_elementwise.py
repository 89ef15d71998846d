"""Small programs for each number, copies and fills of a plan, over views drawn at random."""

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.graph.operations import FUNCTIONS, Copy, Elementwise, Fill, View
from whet.kernels.graph.plan import Plan

DTYPES = (torch.float32, torch.int64, torch.int32, torch.bool, torch.bfloat16)
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
EXACT: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
    "pow": torch.pow,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    **{
        name: getattr(torch, name)
        for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf", "round", "floor")
    },
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
BINARY = FUNCTIONS[: FUNCTIONS.index("neg")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(kernels: Library, name: str) -> None:
    x = torch.cat([torch.linspace(-20, 20, 999), torch.tensor([0.0, 1.0, 1e-6, 2.5, -1e-6, math.inf, math.nan])])
    y = x[torch.randperm(len(x))]
    if name in ("log", "sqrt", "rsqrt", "pow"):
        x = x.abs()
    if name in ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"):
        x = x[x.isfinite() | x.isnan()]
    y, out = y[: len(x)] / 4, torch.empty_like(x)
    Plan([Elementwise((View.of(x), View.of(y)), ((name, 0, 1),), View.of(out))]).run()
    wanted = EXACT[name](x.double(), y.double()) if name in BINARY else EXACT[name](x.double())
    torch.testing.assert_close(out, wanted.float(), rtol=2e-6, atol=1e-6, equal_nan=True)


@st.composite
def broadcast(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Numbers that can be broadcast to a shape, and lie in memory in any order with room between them."""
    sizes = [draw(st.sampled_from((size, 1))) for size in shape[draw(st.integers(0, len(shape))) :]]
    order = draw(st.permutations(range(len(sizes))))
    room = [sizes[d] + draw(st.integers(0, 2)) for d in order]
    numbers = torch.randint(-3, 4, room).to(dtype)
    return numbers[tuple(slice(0, sizes[d]) for d in order)].permute([order.index(d) for d in range(len(order))])


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return (
        st.lists(st.sampled_from((1, 2, 3, 16, 17, 40)), max_size=4)
        .filter(lambda sizes: math.prod(sizes) < 9000)
        .map(tuple)
    )


def laid_out(data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An output of a shape within larger memory, in any order of its dimensions, and that memory."""
    order = data.draw(st.permutations(range(len(shape))))
    memory = torch.full([shape[d] + data.draw(st.integers(0, 2)) for d in order], 1).to(dtype)
    part = memory[tuple(slice(0, shape[d]) for d in order)].permute([order.index(d) for d in range(len(order))])
    return part, memory


@QUICK
@given(data=st.data(), shape=shapes())
def test_programs(kernels: Library, data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Of whole numbers, whose sums and products are exact."""
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
    inputs = [data.draw(broadcast(dtype, shape)) for dtype in dtypes]
    values, code = [x.float().expand(shape) for x in inputs], []
    for _ in range(data.draw(st.integers(0, 4))):
        i, j = (data.draw(st.integers(0, len(values) - 1)) for _ in range(2))
        name = data.draw(st.sampled_from(("add", "sub", "max", "lt", "neg", "relu")))
        code.append((name, i, j))
        values.append((EXACT[name](values[i], values[j]) if name in BINARY else EXACT[name](values[i])).float())
    out, memory = laid_out(data, shape, torch.float32)
    size = memory.numel()
    Plan([Elementwise(tuple(map(View.of, inputs)), tuple(code), View.of(out))]).run()
    assert torch.equal(out, values[-1] if code else values[0])
    out.fill_(1.0)
    assert int(memory.sum()) == size  # nothing beside the output was written


@QUICK
@given(data=st.data(), shape=shapes(), dtype=st.sampled_from(DTYPES))
def test_copies_and_fills(kernels: Library, data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = data.draw(broadcast(dtype, shape)).expand(shape)
    out, memory = laid_out(data, shape, dtype)
    Plan([Copy(View.of(x), View.of(out))]).run()
    assert torch.equal(out, x)
    Plan([Fill(View.of(out), -2.0)]).run()
    assert torch.equal(out, torch.full(shape, -2.0).to(dtype))
    out.fill_(1)
    assert bool((memory == 1).all())


def test_an_input_may_be_the_output(kernels: Library) -> None:
    x, y = torch.randn(7, 333), torch.randn(333)
    wanted = (x + y) * y
    Plan([Elementwise((View.of(x), View.of(y)), (("add", 0, 1), ("mul", 2, 1)), View.of(x))]).run()
    assert torch.equal(x, wanted)


def test_images_become_patches(kernels: Library) -> None:
    """A copy between six dimensions: what a convolution with stride sees, as rows."""
    images, out = torch.randn(2, 3, 24, 36), torch.empty(2, 4, 6, 3, 6, 6)
    Plan([Copy(View.of(images.view(2, 3, 4, 6, 6, 6).permute(0, 2, 4, 1, 3, 5)), View.of(out))]).run()
    assert torch.equal(out.view(2, 24, 108), functional.unfold(images, 6, stride=6).transpose(1, 2))


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    x, out = torch.randn(3, 40), torch.empty(3, 40)
    with pytest.raises(InputsError, match=r"step 1 \(add\) takes a value that is not there yet"):
        Plan([Elementwise((View.of(x),), (("neg", 0, 9), ("add", 0, 2)), View.of(out))])
    with pytest.raises(InputsError, match="there is no function cube; there are add"):
        Plan([Elementwise((View.of(x),), (("cube", 0, 0),), View.of(out))])
    with pytest.raises(InputsError, match=r"an input \[4\] cannot be broadcast to \[3, 40\]"):
        Plan([Elementwise((View.of(x[0, :4]),), (), View.of(out))])
    with pytest.raises(InputsError, match=r"x is torch\.float32; it must be torch\.int64"):
        Plan([Copy(View.of(x), View.of(out.long()))])
    with pytest.raises(InputsError, match="more than 6 dimensions"):
        Plan([Copy(View.of(torch.randn((4,) * 7)[(slice(None, None, 2),) * 7]), View.of(torch.empty((2,) * 7)))])
