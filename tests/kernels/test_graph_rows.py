"""Norms, softmax, reductions, embeddings and products of a plan, against torch in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.graph.operations import Embed, Gather, Multiply, Norm, Normalise, Reduce, Softmax, View
from whet.kernels.graph.plan import Plan

WIDTHS = (1, 2, 15, 16, 17, 63, 64, 100, 768)


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y - wanted).abs().max() / wanted.abs().max().clamp_min(1))


@pytest.mark.parametrize("is_rms", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(kernels: Library, width: int, is_rms: bool) -> None:
    for rows in range(1, 8):
        x, other, weight, bias = (torch.randn(*shape) for shape in ((rows, width), (rows, width), (width,), (width,)))
        x += 3
        for has_weight, has_other in ((True, True), (False, False), (True, False), (False, True)):
            out, total = torch.empty(rows, width), torch.empty(rows, width)
            norm = Norm(*((View.of(weight), View.of(bias)) if has_weight else (None, None)), 1e-5, is_rms)
            views = (View.of(other), View.of(total)) if has_other else (None, None)
            Plan([Normalise(View.of(x), norm, View.of(out), *views)]).run()
            summed = x.double() + other if has_other else x.double()
            wanted = (
                functional.rms_norm(summed, (width,), eps=1e-5) if is_rms else functional.layer_norm(summed, (width,))
            )
            assert error(out, wanted * weight + bias if has_weight else wanted) < 1e-5
            if has_other:
                assert torch.equal(total, x + other)


def test_a_norm_of_numbers_far_from_0(kernels: Library) -> None:
    """The mean is subtracted before squares are summed."""
    x, out = torch.randn(4, 300) + 1000, torch.empty(4, 300)
    Plan([Normalise(View.of(x), Norm(None, None, 1e-5, False), View.of(out))]).run()
    assert error(out, functional.layer_norm(x.double(), (300,))) < 1e-3


def test_a_total_may_take_the_place_of_what_is_added(kernels: Library) -> None:
    for i in range(2):
        both, out = [torch.randn(3, 5, 37), torch.randn(3, 5, 37)], torch.empty(3, 5, 37)
        summed = both[0] + both[1]
        x, other = map(View.of, both)
        Plan([Normalise(x, Norm(None, None, 1e-5, True), View.of(out), other, (x, other)[i])]).run()
        assert torch.equal(both[i], summed)
        assert error(out, functional.rms_norm(summed.double(), (37,), eps=1e-5)) < 1e-5


@pytest.mark.parametrize("width", WIDTHS)
def test_softmax(kernels: Library, width: int) -> None:
    x, out = torch.randn(2, 7, width + 3)[..., :width] * 10, torch.full((2, 7, width + 2), 7.0)
    Plan([Softmax(View.of(x), View.of(out[..., :width]))]).run()
    assert error(out[..., :width], x.double().softmax(-1)) < 1e-6
    assert bool((out[..., width:] == 7).all())
    Plan([Softmax(View.of(x), View.of(x))]).run()
    assert torch.equal(x, out[..., :width])


def test_softmax_of_what_is_not_finite(kernels: Library) -> None:
    x = torch.randn(4, 20)
    x[0, 3], x[1, :], x[2, 5:] = -math.inf, -math.inf, -math.inf
    x[3, 19] = torch.nan
    wanted = x.double().softmax(-1)
    Plan([Softmax(View.of(x), View.of(x))]).run()
    torch.testing.assert_close(x, wanted.float(), equal_nan=True, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", WIDTHS)
def test_reductions(kernels: Library, width: int, kind: str) -> None:
    """Of numbers side by side, of columns of a matrix, as pooling over tokens has them, and of numbers far apart."""
    x = torch.randn(3, 5, width)
    columns, apart = torch.randn(3, width, 21).transpose(1, 2), torch.randn(3, 5, width, 2)[..., 0]
    for numbers in (x, columns, apart, columns[:, 3:20], x - 9):
        out = torch.full((*numbers.shape[:2], 2), 7.0)
        Plan([Reduce(View.of(numbers), View.of(out[..., 0]), kind)]).run()  # type: ignore[arg-type]
        exact = numbers.double()
        wanted = exact.amax(-1) if kind == "max" else exact.sum(-1) if kind == "sum" else exact.mean(-1)
        assert error(out[..., 0], wanted) < 1e-5
        assert bool((out[..., 1] == 7).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 16, 37, 100])
def test_embeddings(kernels: Library, width: int, dtype: torch.dtype) -> None:
    tables = [torch.randn(num, width).to(dtype) for num in (30, 7, 2)]
    indices = [torch.randint(0, len(table), (3, 5)) for table in tables]
    indices[1] = torch.arange(5).expand(3, 5)
    out = torch.empty(3, 5, width)
    Plan([Embed(tuple(map(View.of, tables)), tuple(map(View.of, indices)), View.of(out))]).run()
    wanted = sum(functional.embedding(ids, table.double()) for ids, table in zip(indices, tables, strict=True))
    assert isinstance(wanted, Tensor)
    assert error(out, wanted) < 1e-6


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_an_index_outside_its_table_is_an_error(kernels: Library, wrong: int) -> None:
    tables, indices = [torch.randn(30, 8), torch.randn(7, 8)], [torch.zeros(9).long(), torch.zeros(9).long()]
    out = torch.empty(9, 8)
    plan = Plan([Embed(tuple(map(View.of, tables)), tuple(map(View.of, indices)), View.of(out))])
    plan.run()
    indices[1][8] = wrong
    with pytest.raises(InputsError, match="outside an embedding of 30 and 7 rows; check the ids"):
        plan.run()
    indices[1][8] = 6
    plan.run()


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 7, 5), (7, 16, 64), (13, 33, 130), (20, 65, 17)])
def test_products(kernels: Library, m: int, k: int, n: int) -> None:
    """With batches that lie apart or are broadcast, and matrices that are transposed in memory."""
    plain = (torch.randn(2, 3, m, k), torch.randn(2, 3, k, n), torch.empty(2, 3, m, n))
    turned = (torch.randn(2, 3, k, m).mT, torch.randn(2, 3, n, k).mT, torch.empty(2, 3, n, m).mT)
    heads = (torch.randn(2, m, 3, k).transpose(1, 2), torch.randn(2, k, 3, n).transpose(1, 2), plain[2].clone())
    one = (torch.randn(m, k), torch.randn(2, 1, k, n), plain[2].clone())
    for a, b, out in (plain, turned, heads, one):
        Plan([Multiply(View.of(a), View.of(b), View.of(out))]).run()
        assert error(out, a.double() @ b.double()) < 1e-5


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    x, out = torch.randn(3, 40), torch.empty(3, 40)
    with pytest.raises(InputsError, match=r"operation 0, Multiply: b has the shape \[3, 40\], not \[40, 40\]"):
        Plan([Multiply(View.of(x), View.of(x), View.of(out))])
    with pytest.raises(InputsError, match=r"indices is torch\.float32; it must be torch\.int64"):
        Plan([Embed((View.of(x),), (View.of(x[:, 0]),), View.of(out))])
    with pytest.raises(InputsError, match=r"there are 1 tables and 0 indices"):
        Plan([Embed((View.of(x),), (), View.of(out))])
    with pytest.raises(InputsError, match=r"a table has the shape \[3, 40\], not \[3, 41\]"):
        Plan([Embed((View.of(x),), (View.of(torch.zeros(3).long()),), View.of(torch.empty(3, 41)))])
    with pytest.raises(InputsError, match=r"x \[3, 0\] is empty"):
        Plan([Reduce(View.of(x[:, :0]), View.of(out[:, 0]), "sum")])
    with pytest.raises(InputsError, match=r"there is no other whose total"):
        Plan([Normalise(View.of(x), Norm(None, None, 1e-5, True), View.of(out), total=View.of(out))])
    with pytest.raises(InputsError, match=r"x has no address"):
        Plan([Softmax(View(0, (3, 40), (40, 1)), View.of(out))])


def test_numbers_by_index(kernels: Library) -> None:
    x, indices = torch.randn(2, 3, 5, 40), torch.randint(0, 40, (5, 17))
    wanted = x.gather(-1, indices.expand(2, 3, 5, 17))
    for given in (x, x.mT.contiguous().mT, x.transpose(0, 1).contiguous().transpose(0, 1)):
        out = torch.full((2, 3, 5, 17), 7.0)
        Plan([Gather(View.of(given), View.of(indices), View.of(out))]).run()
        assert torch.equal(out, wanted)
    for bad in (40, -1):
        indices[2, 3] = bad
        with pytest.raises(InputsError, match="outside a row of 40 numbers"):
            Plan([Gather(View.of(x), View.of(indices), View.of(out))]).run()
