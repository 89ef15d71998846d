"""Deferred logits give PyTorch's own loss and gradients, and real logits for whatever else is done with them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from whet.techniques.mechanisms import chunked_cross_entropy
from whet.techniques.mechanisms.chunked_cross_entropy import chunked_cross_entropy as chunked
from whet.techniques.mechanisms.deferred_logits import DeferredLogits

B, T, D, V = 2, 5, 6, 11


def layer(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((B, T, D), (V, D), (V,))
    x, weight, bias = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return x, weight, bias


def promise(x: Tensor, weight: Tensor, bias: Tensor | None) -> DeferredLogits:
    return DeferredLogits(x, weight, bias, x.dtype, x.dtype)


@given(
    rows=st.integers(1, 40),
    vocabulary=st.integers(1, 30),
    chunk=st.integers(1, 17),
    ignored=st.lists(st.integers(0, 39), max_size=20),
    has_bias=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=60, deadline=None)
def test_any_chunks_give_the_loss_and_the_gradients_of_torch(
    rows: int, vocabulary: int, chunk: int, ignored: list[int], has_bias: bool, smoothing: float
) -> None:
    generator = torch.Generator().manual_seed(rows * 31 + vocabulary)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((rows, D), (vocabulary, D), (vocabulary,))
    )
    target = torch.randint(0, vocabulary, (rows,), generator=generator)
    target[[i for i in ignored if i < rows]] = -100
    leaves = [x, weight, bias] if has_bias else [x, weight]
    mine = [leaf.clone().requires_grad_() for leaf in leaves]
    theirs = [leaf.clone().requires_grad_() for leaf in leaves]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_cross_entropy, "_CHUNK_BYTES", chunk * vocabulary * 8)
        bias = mine[2] if has_bias else None
        found = chunked(*mine[:2], bias, target, ignore_index=-100, dtype=torch.float64, smoothing=smoothing)
    expected = F.cross_entropy(F.linear(*theirs), target, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    (3 * found).backward()
    (3 * expected).backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_gradients_by_finite_differences() -> None:
    x, weight, bias = layer()
    target = torch.tensor([0, 3, -100, 10, 7, 7, 2, 1, -100, 5])

    def total(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = x.reshape(-1, D)
        return chunked(rows, weight, bias, target, ignore_index=-100, dtype=torch.float64, smoothing=0.1, scale=0.3)

    assert torch.autograd.gradcheck(total, (x, weight, bias))


@pytest.mark.parametrize("chunk_rows", [1, 3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_products_give_gradients_as_near_as_torchs_own(
    dtype: torch.dtype, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weight's gradient is summed over chunks and tiles in float32, so that rounding does not add up."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).div(4).to(dtype).float() for shape in ((60, 40), (500, 40)))
    bias = torch.randn(500, generator=generator)
    target = torch.randint(0, 500, (60,), generator=generator)
    target[5] = -100
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_BYTES", chunk_rows * 500 * dtype.itemsize)
    monkeypatch.setattr(chunked_cross_entropy, "_COLUMN_BYTES", 1)
    monkeypatch.setattr(chunked_cross_entropy, "_TILE_BYTES", 128 * 40 * dtype.itemsize)

    def gradients(loss_of: Callable[..., Tensor], wide: torch.dtype) -> list[Tensor]:
        leaves = [leaf.to(wide).requires_grad_() for leaf in (x, weight, bias)]
        return [g.double() for g in torch.autograd.grad(loss_of(*leaves), leaves)]

    exact = gradients(lambda *leaves: F.cross_entropy(F.linear(*leaves), target), torch.float64)
    own = gradients(
        lambda *leaves: F.cross_entropy(F.linear(*(leaf.to(dtype) for leaf in leaves)).float(), target), torch.float32
    )
    found = gradients(
        lambda *leaves: F.cross_entropy(DeferredLogits(*leaves, torch.float32, dtype), target), torch.float32
    )
    for a, b, c in zip(found, own, exact, strict=True):
        assert (a - c).norm() <= 1.2 * (b - c).norm() + 1e-6 * c.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_gradients_of_a_mean_do_not_vanish(dtype: torch.dtype) -> None:
    """A scaled loss keeps them in float16's range, if the mean's factor comes no sooner than the loss's."""
    x, weight = torch.randn(2000, 8) / 4, torch.randn(4000, 8, requires_grad=True)
    target = torch.randint(0, 10, (2000,))  # the gradients of all other columns are small
    loss = F.cross_entropy(DeferredLogits(x, weight, None, torch.float32, dtype), target)
    (found,) = torch.autograd.grad(loss * 2**14, weight)
    (exact,) = torch.autograd.grad(F.cross_entropy(F.linear(x.double(), weight.double()), target), weight)
    assert (found / 2**14 - exact)[10:].norm() <= 5e-3 * exact[10:].norm()


def test_chunks_are_long_and_even() -> None:
    rows = chunked_cross_entropy.rows_of_a_chunk
    assert rows(2048, (32_000, 512), torch.bfloat16) == 512  # 32 MiB would be 524
    assert rows(2048, (128_000, 2048), torch.bfloat16) == 1024
    assert rows(2048, (128_000, 2048), torch.float32) == 512
    assert rows(2048, (128_000, 64), torch.float32) == 64  # 32 MiB
    assert rows(1025, (128_000, 2048), torch.bfloat16) == 513
    assert rows(7, (1000, 64), torch.float32) == 7
    assert rows(0, (1000, 64), torch.float32) == 1


class LargestLogits(TorchDispatchMode):
    """Note the most rows of any tensor whose rows are as long as the vocabulary."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.dim() > 1 and made.shape[-1] == 500:
            self.most = max(self.most, made.numel() // 500)
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_whole_logits_are_never_in_memory(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_BYTES", 16 * 500 * dtype.itemsize)
    x, weight = torch.randn(64, 7, requires_grad=True), torch.randn(500, 7, requires_grad=True)
    for logits, most in (
        (DeferredLogits(x, weight, None, torch.float32, dtype), 16),
        (F.linear(x, weight), 64),  # what is noted is what torch would make
    ):
        with LargestLogits() as largest:
            F.cross_entropy(logits, torch.arange(64)).backward()
        assert largest.most == most


def test_gradients_are_handed_over_and_made_again_for_a_second_backward() -> None:
    x, weight, bias = layer(torch.float32)
    target = torch.randint(0, V, (B * T,), generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(
        F.cross_entropy(F.linear(x, weight, bias).flatten(0, 1), target) * 3, (x, weight, bias)
    )
    loss = F.cross_entropy(promise(x, weight, bias).flatten(0, 1), target) * 3
    first = [g.clone() for g in torch.autograd.grad(loss, (x, weight, bias), retain_graph=True)]
    second = torch.autograd.grad(loss, (x, weight, bias))
    for a, b, c in zip(first, second, expected, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, (x, weight, bias))


def test_a_batch_that_counts_nothing_trains_as_with_torch() -> None:
    x, weight, bias = layer(torch.float32)
    target = torch.full((B * T,), -100)
    loss = F.cross_entropy(promise(x, weight, bias).flatten(0, 1), target)
    assert loss.isnan()
    assert all(g.eq(0).all() for g in torch.autograd.grad(loss, (x, weight, bias)))


def test_targets_that_are_no_columns_are_refused() -> None:
    logits = promise(*layer(torch.float32)).flatten(0, 1)
    for target in (V, -1):
        with pytest.raises(IndexError):
            F.cross_entropy(logits, torch.full((B * T,), target))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    "shape",
    [
        lambda logits: logits.flatten(0, 1),
        lambda logits: logits.view(-1, V),
        lambda logits: logits.reshape(B * T, -1),
        lambda logits: logits.float().contiguous().view(-1, logits.size(-1)),
        lambda logits: logits.to(torch.float32).flatten(0, 1),
    ],
)
def test_loops_reach_the_loss_without_the_logits(
    shape: Callable[[Tensor], Tensor], reduction: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = layer(torch.float32)
    target = torch.randint(0, V, (B * T,), generator=torch.Generator().manual_seed(0))
    how: Any = {"reduction": reduction, "label_smoothing": smoothing}
    expected = F.cross_entropy(shape(F.linear(x, weight, bias)), target, **how)
    monkeypatch.setattr(DeferredLogits, "computed", lambda self: pytest.fail("the logits were computed"))
    found = F.cross_entropy(shape(promise(x, weight, bias)), target, **how)
    torch.testing.assert_close(found, expected)


def test_shifted_logits_as_of_transformers() -> None:
    x, weight, _ = layer(torch.float32)
    labels = torch.randint(0, V, (B, T))
    for index in ((..., slice(None, -1), slice(None)), (slice(None), slice(None, -1)), (slice(None), slice(1, None))):
        mine = promise(x, weight, None)[index]
        assert isinstance(mine, DeferredLogits)
        theirs = F.linear(x, weight)[index]
        assert mine.shape == theirs.shape
        found = F.cross_entropy(mine.view(-1, V), labels[:, 1:].reshape(-1))
        torch.testing.assert_close(found, F.cross_entropy(theirs.reshape(-1, V), labels[:, 1:].reshape(-1)))


@pytest.mark.parametrize(
    "use",
    [
        lambda logits: logits.argmax(-1),
        lambda logits: logits * 2,
        lambda logits: 2 + logits,
        lambda logits: logits.softmax(-1),
        lambda logits: torch.cat([logits, logits]),
        lambda logits: logits[..., 0],
        lambda logits: logits[:, torch.tensor([1, 0])],
        lambda logits: logits.transpose(0, 1),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), torch.arange(B * T), reduction="none"),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), torch.arange(B * T), weight=torch.ones(V).double()),
        lambda logits: F.cross_entropy(logits.transpose(1, 2), torch.zeros(B, T, dtype=torch.long)),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), torch.full((B * T, V), 1 / V, dtype=torch.float64)),
    ],
)
def test_whatever_else_is_done_sees_real_logits(use: Callable[[Tensor], Tensor]) -> None:
    x, weight, bias = layer()
    expected, found = use(F.linear(x, weight, bias)), use(promise(x, weight, bias))
    assert not isinstance(found, DeferredLogits)
    torch.testing.assert_close(found, expected)
    if found.is_floating_point():
        mine, theirs = (
            torch.autograd.grad(one.sum(), (x, weight, bias), allow_unused=True) for one in (found, expected)
        )
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_the_facts_of_a_promise_need_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = layer(torch.float32)
    monkeypatch.setattr(DeferredLogits, "computed", lambda self: pytest.fail("the logits were computed"))
    logits = promise(x, weight, bias)
    facts: list[Any] = [logits.shape, logits.size(-1), logits.dim(), logits.dtype, logits.device, logits.numel()]
    assert facts == [(B, T, V), V, 3, torch.float32, torch.device("cpu"), B * T * V]
    assert "DeferredLogits" in repr(logits)


def test_the_loss_of_rounded_logits_is_float32() -> None:
    """bfloat16's own cross-entropy would round a loss of 10.07 to 10.06 or 10.12."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(2000, 32) / 4
    target = torch.randint(0, 2000, (64,))
    logits = DeferredLogits(x, weight, None, torch.float32, torch.bfloat16)
    found = F.cross_entropy(logits, target)
    assert found.dtype is torch.float32
    rounded = (x.bfloat16() @ weight.bfloat16().T).float()
    torch.testing.assert_close(found, F.cross_entropy(rounded, target), rtol=1e-5, atol=1e-5)


def test_logits_of_another_step_are_refused() -> None:
    """After optimizer.step() the weights are others: to compute the logits then would give other ones."""
    x, weight, bias = layer()
    logits = promise(x, weight, bias)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match=r"use them before optimizer.step\(\)"):
        logits.argmax(-1)


def test_logits_that_are_not_computed_cannot_be_written_to() -> None:
    logits = promise(*layer())
    with pytest.raises(RuntimeError, match="div_ would change logits"):
        logits.div_(2)
    with pytest.raises(RuntimeError, match="__setitem__ would change logits"):
        logits[..., 0] = 0.0
