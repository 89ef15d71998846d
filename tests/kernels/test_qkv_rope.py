"""Norm, rotary positions and the cache's new entries: the kernels against torch, for every build of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Isa, library, supported
from whet.kernels.paged_attention.cache import BLOCK_SIZE, Batch, KvCache
from whet.kernels.qkv_rope import write_qkv, write_qkv_native
from whet.kernels.qkv_rope.reference import qkv_rope_reference

LONGEST = 96
DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def batch_of(new: list[int], before: list[int], num_blocks: int) -> Batch:
    """Sequences with so many new tokens after so many earlier ones, in blocks at random places."""
    ends = [b + n for b, n in zip(before, new, strict=True)]
    width = max(-(-end // BLOCK_SIZE) for end in ends)
    blocks = torch.randperm(num_blocks)[: len(new) * width].reshape(len(new), width).int()
    starts = ints([0, *torch.tensor(new).cumsum(0).tolist()])
    positions = torch.cat([torch.arange(b, e) for b, e in zip(before, ends, strict=True)]).int()
    return Batch(positions, starts, ints(ends), blocks)


def tables(head_dim: int) -> tuple[Tensor, Tensor]:
    angles_LH = torch.outer(torch.arange(LONGEST).float(), torch.rand(head_dim // 2) * 3)
    return angles_LH.cos() * 1.1, angles_LH.sin() * 1.1


def caches_equal(a: KvCache, b: KvCache) -> bool:
    pairs = ((a.keys, b.keys), (a.values, b.values), (a.key_scales, b.key_scales), (a.value_scales, b.value_scales))
    return all(x is None or y is None or torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 16), (6, 2, 48), (4, 4, 64), (8, 1, 80), (3, 3, 96), (2, 2, 256)]
)
def test_as_torch_does_it_bit_for_bit(
    isa: Isa, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    """Without norms the products and sums are torch's own, so that q, k and the whole cache are equal."""
    batch = batch_of([1, 13, 0, 40, 2], [31, 3, 7, 0, 46], 40)
    qkv_TC = torch.randn(56, (num_heads + 2 * num_kv_heads) * head_dim)
    qkv_TC[5] = 0.0  # a head without a largest number has the scale 0
    cos_LH, sin_LH = tables(head_dim)
    caches = [KvCache.empty(40, num_kv_heads, head_dim, dtype) for _ in range(2)]
    for cache in caches:
        cache.values.fill_(7)  # what other sequences left
    q, k, v = qkv_rope_reference(qkv_TC, num_kv_heads, head_dim, batch.positions, cos_LH, sin_LH, None, None, 1e-6)
    caches[0].write(batch, k, v)
    write_qkv_native(library(isa), qkv_TC, caches[1], batch, cos_LH, sin_LH, None, None, 1e-6)
    assert torch.equal(qkv_TC.unflatten(1, (-1, head_dim)), torch.cat((q, k, v), dim=1))
    assert caches_equal(*caches)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("head_dim", [16, 80, 128])
def test_norms_of_heads(isa: Isa, head_dim: int) -> None:
    batch = batch_of([7, 20], [0, 9], 8)
    qkv_TC = torch.randn(27, 8 * head_dim)
    cos_LH, sin_LH = tables(head_dim)
    q_norm, k_norm = torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5
    cache = KvCache.empty(8, 2, head_dim, torch.float32)
    wanted = qkv_rope_reference(qkv_TC.double(), 2, head_dim, batch.positions, cos_LH, sin_LH, q_norm, k_norm, 1e-5)
    write_qkv_native(library(isa), qkv_TC, cache, batch, cos_LH, sin_LH, q_norm, k_norm, 1e-5)
    torch.testing.assert_close(qkv_TC.double(), torch.cat(wanted, dim=1).flatten(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_written_is_read(dtype: torch.dtype) -> None:
    """Through the operator; int8 is off by half a step of its scale at the most."""
    batch = batch_of([37], [0], 3)
    qkv_TC = torch.randn(37, 4 * 32)
    cache = KvCache.empty(3, 1, 32, dtype)
    write_qkv(qkv_TC, cache, batch, *tables(32))
    for kept, given in zip(cache.read(batch.block_tables[0]), qkv_TC[:, 64:].split(32, dim=1), strict=True):
        step = given.abs().amax(dim=1) / 127
        bound = {torch.float32: 0 * step, torch.bfloat16: step / 2, torch.int8: step * 0.5001}[dtype]
        assert ((kept[:37, 0] - given).abs().amax(dim=1) <= bound).all()


def test_places_after_the_last_token_have_no_values() -> None:
    """A block that is used again holds another sequence's numbers, or not even numbers."""
    cache = KvCache.empty(2, 1, 16, torch.bfloat16)
    cache.values.fill_(torch.nan)
    write_qkv(torch.randn(18, 48), cache, batch_of([18], [0], 2), *tables(16))
    assert cache.values.isfinite().all()
    assert (cache.values == 0).sum() == 14 * 16


def test_a_lost_draft_may_stay() -> None:
    """Going back to fewer tokens and writing on touches nothing but the new token's place."""
    cache = KvCache.empty(1, 1, 16, torch.float32)
    cos_LH, sin_LH = tables(16)
    write_qkv(torch.randn(9, 48), cache, batch_of([9], [0], 1), cos_LH, sin_LH)
    kept = cache.values.clone()
    write_qkv(torch.randn(1, 48), cache, batch_of([1], [5], 1), cos_LH, sin_LH)
    assert (cache.values != kept).any(dim=3).flatten().nonzero().flatten().tolist() == [5]


def test_without_kernels_torch_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([3, 17], [14, 0], 6)
    qkv_TC = torch.randn(20, 6 * 32)
    other_TC = qkv_TC.clone()
    caches = [KvCache.empty(6, 1, 32, torch.int8) for _ in range(2)]
    cos_LH, sin_LH = tables(32)
    write_qkv(qkv_TC, caches[0], batch, cos_LH, sin_LH)
    monkeypatch.setattr("whet.kernels.qkv_rope.kernels_for", lambda *tensors: None)
    write_qkv(other_TC, caches[1], batch, cos_LH, sin_LH)
    assert torch.equal(qkv_TC, other_TC)
    assert caches_equal(*caches)


def test_as_a_torch_operator() -> None:
    batch = batch_of([5], [0], 2)
    cache = KvCache.empty(2, 1, 16, torch.bfloat16)
    tensors = (cache.keys, cache.values, None, None)
    torch.library.opcheck(
        torch.ops.whet.qkv_rope.default, (torch.randn(5, 48), *tensors, *batch, *tables(16), None, None, 1e-6)
    )


Broken = Callable[[Tensor, KvCache, Batch], tuple[Tensor, KvCache, Batch]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, c, b: (x.double(), c, b), "float32"),
        (lambda x, c, b: (x[:, :40], c, b), "heads of 16"),
        (lambda x, c, b: (x[:4], c, b), "4 tokens of 1 sequences"),
        (lambda x, c, b: (x, c, b._replace(block_tables=b.block_tables + 2)), "blocks 0 to 1"),
        (lambda x, c, b: (x, c, b._replace(block_tables=b.block_tables[:, :0].contiguous())), "too short for 5 tokens"),
        (lambda x, c, b: (x, c, b._replace(positions=b.positions + 1)), "the positions are not theirs"),
        (lambda x, c, b: (x, c, b._replace(positions=b.positions.long())), "int32"),
        (lambda x, c, b: (x, c, b._replace(query_start=ints([0, 6]))), "query_start rises"),
        (lambda x, c, b: (x, KvCache(c.keys, c.values[:1]), b), "the cache's values"),
        (lambda x, c, b: (x, KvCache(c.keys, c.values, torch.ones(2, 1, 16)), b), "in int8, and only there"),
        (lambda x, c, b: (x, c, batch_of([5], [LONGEST - 3], 9)._replace(block_tables=ints([0] * 9)[None])), "few"),
    ],
)
def test_what_does_not_fit_is_refused(change: Broken, says: str) -> None:
    qkv_TC, cache, batch = change(torch.randn(5, 48), KvCache.empty(2, 1, 16, torch.float32), batch_of([5], [0], 2))
    with pytest.raises(InputsError, match=says):
        write_qkv(qkv_TC, cache, batch, *tables(16))


@pytest.mark.parametrize(("head_dim", "dtype"), [(24, torch.float32), (272, torch.float32), (32, torch.float16)])
def test_caches_that_there_are_no_kernels_for(head_dim: int, dtype: torch.dtype) -> None:
    with pytest.raises(InputsError, match=f"not as {dtype}|not {head_dim}"):
        KvCache.empty(1, 1, head_dim, dtype)
