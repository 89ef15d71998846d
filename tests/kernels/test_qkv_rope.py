"""Norm, rotary positions and the cache's new entries: the C function against torch, for every build of it.

Shape suffixes: T tokens, C a row's numbers, N heads, H head width, L positions.
"""

import ctypes

import pytest
import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Isa, library, supported
from whet.kernels.decoder.structs import RopeStruct
from whet.kernels.dispatch import pointer
from whet.kernels.paged_attention.cache import BLOCK_SIZE, Batch, KvCache
from whet.kernels.paged_attention.native import cache_struct, heads_struct, ragged_struct

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


def write_qkv(
    isa: Isa,
    qkv_TC: Tensor,
    cache: KvCache,
    batch: Batch,
    rope: tuple[Tensor, Tensor],
    *norms: Tensor,
    eps: float = 1e-6,
) -> None:
    """Turn q and k in place, and put k and v into the cache; norms, of q and of k, come before where they are given."""
    library(isa).functions.whet_qkv_rope(
        ctypes.byref(heads_struct(qkv_TC, cache)),
        pointer(qkv_TC),
        ctypes.byref(RopeStruct(*(table.data_ptr() for table in rope))),
        *map(pointer, norms or (None, None)),
        eps,
        ctypes.byref(cache_struct(cache)),
        ctypes.byref(ragged_struct(batch)),
    )


def reference(
    qkv_TC: Tensor, cache: KvCache, batch: Batch, rope: tuple[Tensor, Tensor], *norms: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [T, heads, H] in the type of the input. Source of the turn: Su et al., 2021, arXiv:2104.09864."""
    heads_TNH = qkv_TC.unflatten(-1, (-1, cache.head_dim))
    num_heads = heads_TNH.shape[1] - 2 * cache.num_kv_heads
    q_TNH, k_TNH, v_TNH = heads_TNH.split((num_heads, cache.num_kv_heads, cache.num_kv_heads), dim=1)
    if norms:
        q_TNH, k_TNH = (
            torch.nn.functional.rms_norm(x_TNH, norm_H.shape, norm_H.to(x_TNH.dtype), eps)
            for x_TNH, norm_H in zip((q_TNH, k_TNH), norms, strict=True)
        )
    cos_T1H, sin_T1H = (table_LH[batch.positions.long(), None].to(qkv_TC.dtype) for table_LH in rope)

    def turned(x_TNH: Tensor) -> Tensor:
        a, b = x_TNH.chunk(2, dim=-1)
        return torch.cat((a * cos_T1H - b * sin_T1H, b * cos_T1H + a * sin_T1H), dim=-1)

    return turned(q_TNH), turned(k_TNH), v_TNH


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
    rope = tables(head_dim)
    caches = [KvCache.empty(40, num_kv_heads, head_dim, dtype) for _ in range(2)]
    for cache in caches:
        cache.values.fill_(7)  # what other sequences left
    q, k, v = reference(qkv_TC, caches[0], batch, rope)
    caches[0].write(batch, k, v)
    write_qkv(isa, qkv_TC, caches[1], batch, rope)
    assert torch.equal(qkv_TC.unflatten(1, (-1, head_dim)), torch.cat((q, k, v), dim=1))
    assert caches_equal(*caches)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("head_dim", [16, 80, 128])
def test_norms_of_heads(isa: Isa, head_dim: int) -> None:
    batch = batch_of([7, 20], [0, 9], 8)
    qkv_TC = torch.randn(27, 8 * head_dim)
    rope, norms = tables(head_dim), (torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5)
    cache = KvCache.empty(8, 2, head_dim, torch.float32)
    wanted = reference(qkv_TC.double(), cache, batch, rope, *norms, eps=1e-5)
    write_qkv(isa, qkv_TC, cache, batch, rope, *norms, eps=1e-5)
    torch.testing.assert_close(qkv_TC.double(), torch.cat(wanted, dim=1).flatten(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_written_is_read(isa: Isa, dtype: torch.dtype) -> None:
    """int8 is off by half a step of its scale at the most."""
    batch = batch_of([37], [0], 3)
    qkv_TC = torch.randn(37, 4 * 32)
    cache = KvCache.empty(3, 1, 32, dtype)
    write_qkv(isa, qkv_TC, cache, batch, tables(32))
    for kept, given in zip(cache.read(batch.block_tables[0]), qkv_TC[:, 64:].split(32, dim=1), strict=True):
        step = given.abs().amax(dim=1) / 127
        bound = {torch.float32: 0 * step, torch.bfloat16: step / 2, torch.int8: step * 0.5001}[dtype]
        assert ((kept[:37, 0] - given).abs().amax(dim=1) <= bound).all()


@pytest.mark.parametrize("isa", supported())
def test_places_after_the_last_token_have_no_values(isa: Isa) -> None:
    """A block that is used again holds another sequence's numbers, or not even numbers."""
    cache = KvCache.empty(2, 1, 16, torch.bfloat16)
    cache.values.fill_(torch.nan)
    write_qkv(isa, torch.randn(18, 48), cache, batch_of([18], [0], 2), tables(16))
    assert cache.values.isfinite().all()
    assert (cache.values == 0).sum() == 14 * 16


@pytest.mark.parametrize("isa", supported())
def test_a_lost_draft_may_stay(isa: Isa) -> None:
    """Going back to fewer tokens and writing on touches nothing but the new token's place."""
    cache, rope = KvCache.empty(1, 1, 16, torch.float32), tables(16)
    write_qkv(isa, torch.randn(9, 48), cache, batch_of([9], [0], 1), rope)
    kept = cache.values.clone()
    write_qkv(isa, torch.randn(1, 48), cache, batch_of([1], [5], 1), rope)
    assert (cache.values != kept).any(dim=3).flatten().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize(("head_dim", "dtype"), [(24, torch.float32), (272, torch.float32), (32, torch.float16)])
def test_caches_that_there_are_no_kernels_for(head_dim: int, dtype: torch.dtype) -> None:
    with pytest.raises(InputsError, match=f"not as {dtype}|not {head_dim}"):
        KvCache.empty(1, 1, head_dim, dtype)
