"""The parallel, the chunked and the dual form against the sequential one, in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.kernels.selective_scan.reference import ScanInputs, scan_reference
from whet.models.selective.forms import scan_chunked, scan_parallel, ssd_chunked


def scan_of(per_head, L=37, B=2, H=4, P=3, G=2, N=5, optional=True, seed=0):
    """Rates that decay strongly: within a few tokens, products of decays are 0."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: E731
    q = 1 if per_head else P
    A = -torch.exp(2 * draw(H, q, 1 if per_head else N)) * 5
    extra = [draw(H, q), draw(B, L, H, P), draw(H, q), draw(B, H, P, N)] if optional else [None] * 4
    inputs = (draw(B, L, H, P), 2 * draw(B, L, H, q), A, draw(B, L, G, N), draw(B, L, G, N))
    return ScanInputs(*inputs, *extra, True, 0.0, float("inf"))


def check(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("L", [1, 2, 37, 64])
def test_parallel(per_head, L, optional):
    x = scan_of(per_head, L, optional=optional)
    check(scan_parallel(x), scan_reference(x))


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 16, 37, 100])
def test_chunked_where_chunks_do_not_divide(per_head, chunk):
    x = scan_of(per_head)
    check(scan_chunked(x, chunk), scan_reference(x))


@given(st.integers(1, 50), st.integers(1, 60), st.booleans(), st.integers(0, 99))
def test_dual(L, chunk, optional, seed):
    x = scan_of(True, L, optional=optional, seed=seed)
    check(ssd_chunked(x, chunk), scan_reference(x))


def test_their_gradients_are_the_same():
    x = scan_of(True, 20)
    leaves = (x.u_BLHP, x.delta_BLHq, x.A_HqM, x.B_BLGN, x.C_BLGN, x.D_Hq, x.z_BLHP, x.bias_Hq, x.initial_BHPN)
    for leaf in leaves:
        leaf.requires_grad_()
    wanted = torch.autograd.grad(sum(part.square().sum() for part in scan_reference(x)), leaves)
    for form in (scan_parallel(x), scan_chunked(x, 7), ssd_chunked(x, 7)):
        found = torch.autograd.grad(sum(part.square().sum() for part in form), leaves)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
