"""Operations on some rows of a batch: these become what they are elsewhere, bit for bit; others stay as they are."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.graph.operations import (
    Activation,
    Attend,
    Copy,
    Elementwise,
    Embed,
    Fill,
    Linear,
    Multiply,
    Norm,
    Normalise,
    OfRows,
    Operation,
    Reduce,
    Softmax,
    View,
)
from whet.kernels.graph.plan import Plan
from whet.kernels.graph.seen import SeenRows
from whet.kernels.linear import pack_weights
from whet.kernels.linear.layout import Kind

B, L, W = 5, 37, 24
MASKS = {
    "right": torch.arange(L) < torch.tensor([L, 1, 20, 9, 0])[:, None],
    "left": torch.arange(L) >= torch.tensor([0, 36, 20, 9, 37])[:, None],
    "holes": torch.arange(B * L).reshape(B, L) % 3 != 1,
    "one": torch.arange(B * L).reshape(B, L) == 100,
    "none": torch.zeros(B, L, dtype=torch.bool),
}
NORM = Norm(None, None, 1e-5, False)


def linear(kind: Kind, norm: Norm | None = None) -> Callable[[Tensor, View], Operation]:
    torch.manual_seed(1)
    weights = pack_weights(torch.randn(W, W), kind, torch.randn(W))
    return lambda x, out: Linear(View.of(x), weights, out, Activation.GELU, norm, residual=View.of(x))


def embed(x: Tensor, out: View) -> Operation:
    ids = (torch.arange(B * L).reshape(B, L) * 7 % 11).contiguous()
    keep.append(ids)
    return Embed((View.of(x[0]),), (View.of(ids),), out)


keep: list[Tensor] = []

OPERATIONS: dict[str, Callable[[Tensor, View], Operation]] = {
    **{f"linear {kind.name}": linear(kind) for kind in (Kind.F32, Kind.BF16, Kind.S8)},
    "linear behind a norm": linear(Kind.S8, NORM),
    "normalise": lambda x, out: Normalise(View.of(x), NORM, out),
    "embed": embed,
    "softmax": lambda x, out: Softmax(View.of(x), out),
    "reduce": lambda x, out: Reduce(View.of(x[:, :, None].expand(B, L, W, W)), out, "mean"),
    "elementwise": lambda x, out: Elementwise((View.of(x), View.of(x[:, :1].expand_as(x))), (("mul", 0, 1),), out),
    "elementwise of heads": lambda x, out: Elementwise(
        tuple(View.of(y) for y in (x.view(B, L, 3, 8), x.view(B, L, 3, 8)[:, :, :1].expand(B, L, 3, 8))),
        (("add", 0, 1),),
        View(out.address, (B, L, 3, 8), (L * W, W, 8, 1)),
    ),
    "copy": lambda x, out: Copy(View.of(x[..., 2:3].expand_as(x)), out),
    "copy of a number": lambda x, out: Copy(View.of(x[..., 3]), View(out.address, (B, L), (L * W, W))),
    "fill": lambda x, out: Fill(out, 3.0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows(kernels: Library, name: str) -> None:
    x, whole = torch.randn(B, L, W), torch.full((B, L, W), 7.0)
    Plan([OPERATIONS[name](x, View.of(whole))]).run()
    for is_seen in MASKS.values():
        for of, chosen in (("seen", is_seen), ("hidden", ~is_seen)):
            y = torch.full((B, L, W), 7.0)
            plan = Plan([OfRows(OPERATIONS[name](x, View.of(y)), of)])  # type: ignore[arg-type]
            plan.run(SeenRows(is_seen.numpy()))
            assert torch.equal(y, torch.where(chosen[..., None], whole, 7.0))
        plan.run()
        assert torch.equal(y[~chosen], torch.full_like(y[~chosen], 7.0))  # without rows, none is hidden


@pytest.mark.parametrize("is_bf16", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("length", [L, 600])
def test_attention(kernels: Library, length: int, is_by_row: bool, is_bf16: bool) -> None:
    """Hidden keys and values are not read, whatever stands there."""
    mask = torch.arange(length) % 5 != 2
    mask = mask & (torch.arange(length) < torch.tensor([length, 3, 20, 0])[:, None])
    mask[0] &= torch.arange(length) >= 18
    q, k, v = torch.randn(3, 4, 2, length, 16)
    shown = mask[:, None, None].expand(4, 1, length, length)
    shown = shown.contiguous() if is_by_row else shown

    def attended(seen: SeenRows | None) -> Tensor:
        out = torch.full_like(q, 7.0)
        views = [View.of(x) for x in (q, k, v, out)]
        operation = Attend(*views, 1 / math.sqrt(16), mask=View.of(shown), is_bf16=is_bf16)
        Plan([OfRows(operation, "seen")]).run(seen)
        return out

    wanted = attended(None)
    hidden = ~mask[:, None].expand(4, 2, length)
    for bad in (math.nan, math.inf):
        k[hidden], v[hidden] = bad, bad
        found = attended(SeenRows(mask.numpy()))
        assert torch.equal(found[~hidden], wanted[~hidden])
    assert (found[1, :, 3:] == 7).all()
    assert (found[0, :, :18] == 7).all()
    assert (found[3] == 7).all()


def test_a_norm_and_the_layer_behind_it(kernels: Library) -> None:
    x, weights = torch.randn(B, L, W), pack_weights(torch.randn(40, W), Kind.S8)
    results = []
    for is_seen in (None, *MASKS.values()):
        between, y = torch.full((B, L, W), 7.0), torch.full((B, L, 40), 7.0)
        operations = [Normalise(View.of(x), NORM, View.of(between)), Linear(View.of(between), weights, View.of(y))]
        Plan([OfRows(operation, "seen") for operation in operations]).run(
            None if is_seen is None else SeenRows(is_seen.numpy())
        )
        results.append((between, y))
        if is_seen is not None:
            for found, whole in zip(results[-1], results[0], strict=True):
                assert torch.equal(found, torch.where(is_seen[..., None], whole, 7.0))
            Plan([operations[0], OfRows(operations[1], "seen")]).run(SeenRows(is_seen.numpy()))
            assert torch.equal(between, results[0][0])


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    x = torch.randn(B, L, L)
    plan = Plan([OfRows(Fill(View.of(x), 0.0), "seen")])
    with pytest.raises(InputsError, match=r"rows \[37, 5\] are named of a batch \[5, 37\]"):
        plan.run(SeenRows(np.ones((L, B), np.bool_)))
    with pytest.raises(InputsError, match="Multiply"):
        Plan([OfRows(Multiply(View.of(x), View.of(x), View.of(x)), "seen")])
    with pytest.raises(InputsError, match=r"Fill \[37, 5\] has no rows of a batch of \(5, 37\)"):
        Plan([OfRows(Fill(View.of(x), 0.0), "seen"), OfRows(Fill(View.of(torch.zeros(L, B)), 0.0), "seen")])
