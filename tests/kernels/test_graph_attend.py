"""Attention of whole sequences, against torch's definition in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.graph.operations import Attend, View
from whet.kernels.graph.plan import Plan

BOUNDS = {False: 3e-6, True: 1.5e-2}  # of float32 and bf16
BF16 = pytest.mark.parametrize("is_bf16", [False, True], ids=["f32", "bf16"])


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, is_bf16: bool = False
) -> Tensor:
    out = torch.full((*q.shape[:3], v.shape[3]), 7.0)
    views = [View.of(tensor) for tensor in (q, k, v, out)]
    scale = 1 / math.sqrt(q.shape[3])
    Plan([Attend(*views, scale, is_causal, None if mask is None else View.of(mask), is_bf16)]).run()
    return out


def wanted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
    """Softmax as it is defined; a row that sees nothing is 0, which torch's operator agrees with."""
    scores = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(2, 3)
    scores /= math.sqrt(q.shape[3])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights @ v.double().repeat_interleave(q.shape[1] // k.shape[1], 1)


def tensors(B: int, H: int, Hk: int, T: int, S: int, D: int, Dv: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, T, D), torch.randn(B, Hk, S, D), torch.randn(B, Hk, S, Dv)


SHAPES = [
    (1, 1, 1, 1, 1, 8, 8),
    (2, 3, 3, 5, 7, 16, 16),
    (1, 2, 1, 6, 6, 64, 64),
    (2, 4, 2, 17, 33, 80, 48),
    (1, 3, 3, 13, 13, 9, 5),
    (3, 1, 1, 50, 20, 72, 65),
    (1, 2, 2, 197, 197, 32, 32),
    (1, 1, 1, 7, 600, 24, 100),
    (1, 1, 1, 530, 1030, 16, 16),
]


@BF16
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_attention(kernels: Library, shape: tuple[int, ...], is_causal: bool, is_bf16: bool) -> None:
    q, k, v = tensors(*shape)
    y = attend(q, k, v, is_causal=is_causal, is_bf16=is_bf16)
    assert float((y - wanted(q, k, v, is_causal=is_causal)).abs().max()) < BOUNDS[is_bf16]


def masks(B: int, H: int, T: int, S: int) -> dict[str, Tensor]:
    lengths = torch.arange(B) * S // B + 1
    left = torch.arange(S) >= (S - lengths)[:, None]
    right = torch.arange(S) < lengths[:, None]
    empty = right.clone()
    empty[-1] = False
    some = torch.rand(B, 1, T, S) < 0.5
    some[0, 0, 0] = False
    return {
        "left": left[:, None, None],
        "right": right[:, None, None],
        "empty": empty[:, None, None],
        "by row": some,
        "one sequence": right[:1],
        "added": torch.randn(1, H, T, S),
        "added by key": torch.where(right[:, None, None], 0.0, -math.inf),
        "least": torch.where(empty[:, None, None], 0.0, torch.finfo(torch.float32).min),
    }


@BF16
@pytest.mark.parametrize("name", masks(1, 1, 1, 1))
def test_masks(kernels: Library, name: str, is_bf16: bool) -> None:
    for B, H, T, S in [(3, 2, 7, 21), (4, 1, 6, 530)]:
        q, k, v = tensors(B, H, H, T, S, 24, 24)
        mask = masks(B, H, T, S)[name]
        y, exact = attend(q, k, v, mask, is_bf16=is_bf16), wanted(q, k, v, mask)
        assert float((y - exact).abs().max()) < BOUNDS[is_bf16]
        torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask), exact.float(), rtol=0, atol=1e-5)


def test_views_of_one_matrix(kernels: Library) -> None:
    """q, k and v as they lie in the output of one linear layer; keys as their transpose lies in memory."""
    B, H, T, D = 2, 3, 11, 20
    qkv, out = torch.randn(B, T, 3, H, D), torch.full((B, T, H, D), 7.0)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    Plan([Attend(*(View.of(x) for x in (q, k, v, out.transpose(1, 2))), 1 / math.sqrt(D))]).run()
    apart = attend(q.contiguous(), k.contiguous(), v.contiguous())
    assert torch.equal(out.transpose(1, 2), apart)
    assert torch.equal(attend(q, k.mT.contiguous().mT, v.mT.contiguous().mT), apart)


@BF16
def test_a_sequence_does_not_depend_on_its_company_and_padding(kernels: Library, is_bf16: bool) -> None:
    """Bit for bit: beside longer sequences, with padding after it, and with more or fewer of its rows at once."""
    S = 700
    q, k, v = tensors(3, 2, 2, S, S, 40, 40)
    lengths = torch.tensor([100, 37, S])
    mask = (torch.arange(S) < lengths[:, None])[:, None, None]
    together = attend(q, k, v, mask, is_bf16=is_bf16)
    for i, length in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        alone = attend(q[one, :, :length], k[one, :, :length], v[one, :, :length], is_bf16=is_bf16)
        assert torch.equal(together[one, :, :length], alone)
        few = attend(q[one, :, 5:12], k[one, :, :length], v[one, :, :length], is_bf16=is_bf16)
        assert torch.equal(few, together[one, :, 5:12])


@BF16
def test_does_not_depend_on_threads(kernels: Library, is_bf16: bool) -> None:
    q, k, v = tensors(1, 2, 1, 300, 600, 64, 64)
    results = []
    try:
        for num_threads in (1, 2, 4, 3):
            kernels.set_threads(num_threads)
            results.append(attend(q, k, v, is_bf16=is_bf16))
    finally:
        kernels.set_threads(torch.get_num_threads())
    assert all(torch.equal(result, results[0]) for result in results)


def test_large_scores_do_not_overflow(kernels: Library) -> None:
    q, k, v = tensors(1, 1, 1, 9, 40, 16, 16)
    y = attend(q * 300, k * 300, v)
    assert float((y - wanted(q * 300, k * 300, v)).abs().max()) < 2e-2  # scores of 1e5 are known to 1e-2
    assert attend(q * 300, k * 300, v).isfinite().all()


def test_what_does_not_fit_is_refused(kernels: Library) -> None:
    q, k, v = tensors(2, 3, 3, 5, 7, 16, 16)
    with pytest.raises(InputsError, match=r"3 heads cannot share 2 heads of keys"):
        attend(q, k[:, :2], v[:, :2])
    with pytest.raises(InputsError, match=r"v has the shape \[2, 3, 6, 16\], not \[2, 3, 7, 16\]"):
        attend(q, k, v[:, :, 1:])
    with pytest.raises(InputsError, match=r"mask \[2, 1, 1, 6\] cannot be broadcast to \[2, 3, 5, 7\]"):
        attend(q, k, v, torch.ones(2, 1, 1, 6, dtype=torch.bool))
    with pytest.raises(InputsError, match=r"mask is torch\.int64"):
        attend(q, k, v, torch.ones(5, 7, dtype=torch.int64))
