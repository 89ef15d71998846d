"""Attention by products, held against float64 and against PyTorch's own attention."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing import unfused_attention as tested
from whet.techniques.mechanisms.packing.unfused_attention import (
    AttentionByProducts,
    AttentionComputedAgain,
    product_attention,
)

TRIANGLE = torch.ones(48, 48, dtype=torch.bool).tril()


def inputs(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(B, L, H, D, generator=generator).bfloat16() for B, H, L, D in shapes]
    return [x.transpose(1, 2).requires_grad_() for x in made]


def results(attend: Any, qkv: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Return the attended values and the gradients of queries, keys and values."""
    qkv = [x.detach().requires_grad_() for x in qkv]
    out = attend(*qkv)
    out.backward(gradient.to(out.dtype))
    return [out.detach(), *[x.grad for x in qkv]]  # type: ignore[list-item]


def check(qkv: list[Tensor], mask: Tensor | None, *, is_causal: bool, keep: bool) -> None:
    """Each result is at most three times as far from float64 as that of PyTorch's kernel."""
    scale = qkv[0].shape[-1] ** -0.5
    gradient = torch.randn(qkv[0].shape, generator=torch.Generator().manual_seed(9))

    def fused(*qkv: Tensor) -> Tensor:
        as_float = mask if mask is None or mask.dtype is torch.bool else mask.to(qkv[0].dtype)
        return F.scaled_dot_product_attention(*qkv, attn_mask=as_float, is_causal=is_causal)

    found = results(lambda *qkv: product_attention(*qkv, mask, is_causal, scale, keep)[0], qkv, gradient)
    theirs = results(fused, qkv, gradient.bfloat16())
    exact = results(fused, [x.double() for x in qkv], gradient.bfloat16())
    for mine, other, wanted in zip(found, theirs, exact, strict=True):
        assert mine.dtype is torch.bfloat16
        allowed = 3 * (other.double() - wanted).norm() + 2e-3 * (wanted.norm() + 1e-3)
        assert (mine.double() - wanted).norm() <= allowed


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("length", [1, 48, 256, 300, 600])
def test_causal(length: int, keep: bool) -> None:
    """One block of queries, several, and a last one that is shorter."""
    check(inputs(*[(2, 3, length, 16)] * 3), None, is_causal=True, keep=keep)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        TRIANGLE,
        TRIANGLE[None, None].expand(3, 1, 48, 48),
        torch.rand(3, 1, 48, 48, generator=torch.Generator().manual_seed(1)) > 0.3,
        torch.randn(1, 4, 48, 48, generator=torch.Generator().manual_seed(2)),
        torch.randn(3, 4, 48, 48, generator=torch.Generator().manual_seed(3)),
    ],
)
def test_masks(mask: Tensor | None, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With chunks of a few heads, and of all."""
    qkv = inputs(*[(3, 4, 48, 16)] * 3)
    check(qkv, mask, is_causal=False, keep=keep)
    monkeypatch.setattr(tested, "_CHUNK_BYTES", 3 * 48 * 48 * 2)
    check(qkv, mask, is_causal=False, keep=keep)


def test_a_query_that_sees_nothing_has_zeros() -> None:
    mask = TRIANGLE.clone()
    mask[5] = False
    out, *gradients = results(
        lambda *qkv: product_attention(*qkv, mask, False, 0.25, True)[0],
        inputs(*[(1, 2, 48, 16)] * 3),
        torch.ones(1, 2, 48, 16),
    )
    assert (out[:, :, 5] == 0).all()
    assert (gradients[0][:, :, 5] == 0).all()
    assert all(torch.isfinite(x).all() for x in gradients)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_keys_of_another_length(rows: int, heads: int, queries: int, keys: int, keep: bool) -> None:
    kv = (rows, heads, keys, 8)
    check(inputs((rows, heads, queries, 8), kv, kv), None, is_causal=False, keep=keep)


def test_the_operators_keep_their_promises() -> None:
    q, k, v = inputs(*[(2, 2, 20, 8)] * 3)
    for mask, is_causal, keep in ((None, True, True), (None, False, False), (TRIANGLE[:20, :20], False, True)):
        arguments = (q, k, v, mask, is_causal, 0.3, keep)
        torch.library.opcheck(torch.ops.whet.product_attention.default, arguments)


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv, self.options = nn.Linear(16, 48), options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 12, 3, 4, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def calls(module: nn.Module, monkeypatch: pytest.MonkeyPatch, **autocast: Any) -> int:
    """Return how often a module's forward takes attention by products."""
    seen: list[int] = []
    original = tested.product_attention
    monkeypatch.setattr(tested, "product_attention", lambda *args: (seen.append(1), original(*args))[1])
    with torch.autocast("cpu", torch.bfloat16, **autocast):
        out = module(torch.randn(2, 12, 16))
        if out.requires_grad:
            out.float().sum().backward()
    return len(seen)


@pytest.mark.parametrize("kind", [AttentionByProducts, AttentionComputedAgain])
def test_inside_of_autocast(kind: type[AttentionByProducts], monkeypatch: pytest.MonkeyPatch) -> None:
    module = Attention(is_causal=True)
    extend(module, kind)
    assert calls(module, monkeypatch) == 1
    assert type(module).__name__ == "Attention"


def test_what_stays_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32, dropout, and where nothing is trained."""
    for options, autocast in (({}, False), ({"dropout_p": 0.1}, True)):
        module = Attention(**options)
        extend(module, AttentionByProducts)
        assert calls(module, monkeypatch, enabled=autocast) == 0
    module = Attention()
    extend(module, AttentionByProducts)
    with torch.no_grad():
        assert calls(module, monkeypatch) == 0


def test_no_mode_is_left_behind() -> None:
    module = Attention()
    extend(module, AttentionByProducts)
    with pytest.raises(RuntimeError):
        module(torch.randn(3, 5))
    assert torch.overrides._len_torch_function_stack() == 0


def test_a_method_that_torch_compile_traces_as_no_function() -> None:
    """Inside a mode, torch.compile breaks the graph at Tensor.unflatten where it is called as a function."""

    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in x.split(8, -1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    module, x = Heads(), torch.randn(2, 12, 24)
    wanted = module(x)
    extend(module, AttentionByProducts)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), wanted)
