"""Attention over a cache in blocks: the kernels against a float64 reference and against themselves.

Tolerances. A weight of the softmax is rounded to bf16 over a bf16 or int8 cache, half of 2^-8 of itself at the most, so
a row is off by less than 2^-8 of the same mixture of the values' magnitudes; over a float32 cache by 1e-5 of it. The
reference sees the cache's own numbers, and queries rounded as the kernel rounds them.
"""

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Isa, Library, library, supported
from whet.kernels.paged_attention import attend
from whet.kernels.paged_attention.cache import BLOCK_SIZE, Batch, KvCache
from whet.kernels.paged_attention.native import paged_attention_native
from whet.kernels.paged_attention.reference import paged_attention_reference

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
OFF_BY = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.int8: 2**-8}


class Conversations:
    """Sequences that are known to their end: q, k, v of all their tokens, and blocks in one cache."""

    def __init__(self, lengths: list[int], heads: tuple[int, int, int], dtype: torch.dtype) -> None:
        num_heads, self.num_kv_heads, self.head_dim = heads
        self.lengths = lengths
        self.qkv = [torch.randn(length, (num_heads + 2 * self.num_kv_heads) * self.head_dim) for length in lengths]
        width = max(-(-length // BLOCK_SIZE) for length in lengths)
        self.num_blocks = len(lengths) * width
        self.tables = torch.randperm(self.num_blocks).reshape(-1, width).int()
        for table, length in zip(self.tables, lengths, strict=True):
            table[-(-length // BLOCK_SIZE) :] = 1 << 30  # what lies beyond may hold anything
        self.cache = KvCache.empty(self.num_blocks, self.num_kv_heads, self.head_dim, dtype)
        for tensor in (self.cache.keys, self.cache.values, self.cache.key_scales, self.cache.value_scales):
            if tensor is not None:
                tensor.fill_(99 if tensor.dtype == torch.int8 else math.nan)  # and so may memory

    def step(self, parts: list[tuple[int, int, int]]) -> tuple[Tensor, Batch]:
        """Write the tokens of (sequence, first, end), and give the batch that attends from them."""
        rows = [self.qkv[s][first:end] for s, first, end in parts]
        starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).int()
        positions = torch.cat([torch.arange(first, end) for _, first, end in parts]).int()
        ends = torch.tensor([end for _, _, end in parts], dtype=torch.int32)
        batch = Batch(positions, starts, ends, self.tables[[s for s, _, _ in parts]].contiguous())
        qkv_TC = torch.cat(rows)
        k_TKH, v_TKH = qkv_TC.unflatten(1, (-1, self.head_dim))[:, -2 * self.num_kv_heads :].chunk(2, dim=1)
        self.cache.write(batch, k_TKH, v_TKH)
        return qkv_TC, batch


def check(
    kernels: Library, talk: Conversations, parts: list[tuple[int, int, int]], window: int = 0, times: int = 1
) -> None:
    """A step's rows against the reference, each within its own bound, or so many times that."""
    scale = 0.9 / math.sqrt(talk.head_dim)
    qkv_TC, batch = talk.step(parts)
    got_TC = paged_attention_native(kernels, qkv_TC, [talk.cache], batch, scale, window)
    got_TNH = got_TC.unflatten(1, (-1, talk.head_dim))
    q_TNH = qkv_TC.unflatten(1, (-1, talk.head_dim))[:, : got_TNH.shape[1]]
    dtype = talk.cache.keys.dtype
    if dtype != torch.float32:
        q_TNH = q_TNH.bfloat16()
    wanted_TNH = paged_attention_reference(q_TNH.double(), talk.cache, batch, scale, window)
    magnitudes = KvCache(talk.cache.keys, talk.cache.values.abs(), talk.cache.key_scales, talk.cache.value_scales)
    bound_TNH = times * OFF_BY[dtype] * paged_attention_reference(q_TNH.double(), magnitudes, batch, scale, window)
    assert ((got_TNH - wanted_TNH).abs() <= bound_TNH).all()


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8])
def test_groups_of_heads(isa: Isa, dtype: torch.dtype, group: int) -> None:
    talk = Conversations([150, 33, 16], (2 * group, 2, 16), dtype)
    check(library(isa), talk, [(0, 0, 150), (1, 0, 33), (2, 0, 15)])
    check(library(isa), talk, [(2, 15, 16)])


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 96, 128, 256])
def test_widths_of_heads(isa: Isa, dtype: torch.dtype, head_dim: int) -> None:
    talk = Conversations([140, 5], (3, 1, head_dim), dtype)
    check(library(isa), talk, [(0, 0, 139), (1, 0, 5)])
    check(library(isa), talk, [(0, 139, 140)])


@pytest.mark.parametrize("isa", [isa for isa in supported() if isa is not Isa.PORTABLE])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 127, 128, 129, 255, 257, 512, 700])
def test_lengths(isa: Isa, dtype: torch.dtype, length: int) -> None:
    talk = Conversations([length], (4, 2, 32), dtype)
    first = max(0, length - 9)
    if first:
        talk.step([(0, 0, first)])
    check(library(isa), talk, [(0, first, length)])


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 16, 100, 128, 129, 300])
def test_windows(isa: Isa, dtype: torch.dtype, window: int) -> None:
    talk = Conversations([290, 40], (2, 1, 16), dtype)
    check(library(isa), talk, [(0, 0, 288), (1, 0, 40)], window)
    check(library(isa), talk, [(0, 288, 290)], window)


@pytest.mark.parametrize("isa", supported())
def test_scores_far_apart(isa: Isa) -> None:
    """One key outweighs all others; the maximum rises from chunk to chunk, or falls.

    Scores reach 108, and a weight is off by as many units in the last place.
    """
    for rising in (1.0, -1.0):
        talk = Conversations([400], (2, 1, 16), torch.float32)
        slope = torch.linspace(-30, 30, 400) * rising
        talk.qkv[0][:, :32] = 1.0
        talk.qkv[0][:, 32:48] = slope[:, None]
        check(library(isa), talk, [(0, 0, 400)], times=4)


@pytest.mark.parametrize("isa", [isa for isa in supported() if isa is not Isa.PORTABLE])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "window"), [((4, 1, 32), 0), ((6, 2, 16), 0), ((5, 5, 16), 0), ((3, 1, 16), 70)])
def test_bit_equal_however_tokens_are_spread(
    isa: Isa, dtype: torch.dtype, heads: tuple[int, int, int], window: int
) -> None:
    """Alone and whole on one thread; one token at a time; in random parts beside each other, on 1 to 4 threads."""
    kernels = library(isa)
    talk = Conversations([1, 600, 131, 17, 290], heads, dtype)

    def run(threads: int, parts: list[tuple[int, int, int]], into: list[Tensor]) -> None:
        qkv_TC, batch = talk.step(parts)
        kernels.set_threads(threads)
        out_TC = paged_attention_native(kernels, qkv_TC, [talk.cache], batch, 0.25, window)
        for (sequence, first, end), rows in zip(parts, out_TC.split([e - f for _, f, e in parts]), strict=True):
            into[sequence][first:end] = rows

    def room() -> list[Tensor]:
        return [torch.full((length, heads[0] * heads[2]), math.nan) for length in talk.lengths]

    try:
        alone, one_by_one, mixed = room(), room(), room()
        for sequence, length in enumerate(talk.lengths):
            run(1, [(sequence, 0, length)], alone)
            tail = max(0, length - 20)
            if tail:
                run(2, [(sequence, 0, tail)], one_by_one)
            for position in range(tail, length):
                run(2, [(sequence, position, position + 1)], one_by_one)
        chance = random.Random(window + heads[0])
        done = [0] * len(talk.lengths)
        while unfinished := [s for s, length in enumerate(talk.lengths) if done[s] < length]:
            chosen = chance.sample(unfinished, chance.randint(1, len(unfinished)))
            parts = [(s, done[s], min(done[s] + chance.choice([1, 2, 9, 50, 170]), talk.lengths[s])) for s in chosen]
            run(chance.randint(1, 4), parts, mixed)
            for s, _, end in parts:
                done[s] = end
    finally:
        kernels.set_threads(torch.get_num_threads())
    for whole, *others in zip(alone, one_by_one, mixed, strict=True):
        assert whole.isfinite().all()
        assert all(torch.equal(whole, other) for other in others)


def test_long_sequences_are_cut_and_joined() -> None:
    """One token over 3,000: enough for several threads, whose parts are joined as one thread would."""
    kernels = library()
    talk = Conversations([3000], (8, 2, 64), torch.bfloat16)
    talk.step([(0, 0, 2999)])
    last_TC, last = talk.step([(0, 2999, 3000)])
    try:
        results = []
        for threads in (1, 2, 3, 5):
            kernels.set_threads(threads)
            results.append(paged_attention_native(kernels, last_TC, [talk.cache], last, 0.125, 0))
    finally:
        kernels.set_threads(torch.get_num_threads())
    assert all(torch.equal(results[0], result) for result in results[1:])
    check(kernels, talk, [(0, 2999, 3000)])


def test_what_int8_costs() -> None:
    """Against exact keys and values of a normal distribution: 1 % of the spread of the results, as bf16's 0.4 %."""
    lengths, heads = [500], (8, 2, 64)
    spread = {}
    for dtype in DTYPES:
        torch.manual_seed(1)
        talk = Conversations(lengths, heads, dtype)
        qkv_TC, batch = talk.step([(0, 0, 500)])
        spread[dtype] = attend(qkv_TC, talk.cache, batch, 0.125)
    exact = spread[torch.float32]
    assert (spread[torch.bfloat16] - exact).std() < 0.006 * exact.std()
    assert (spread[torch.int8] - exact).std() < 0.012 * exact.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_without_kernels_torch_does_it(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    talk = Conversations([70, 9], (4, 2, 16), torch.float32)
    qkv_TC, batch = talk.step([(0, 0, 70), (1, 0, 9)])
    by_kernel = attend(qkv_TC.to(dtype), talk.cache, batch, 0.25)
    monkeypatch.setattr("whet.kernels.paged_attention.kernels_for", lambda *tensors: None)
    in_torch = attend(qkv_TC.to(dtype), talk.cache, batch, 0.25)
    assert by_kernel.dtype == in_torch.dtype == dtype
    torch.testing.assert_close(by_kernel, in_torch, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_as_a_torch_operator() -> None:
    talk = Conversations([20], (4, 2, 16), torch.int8)
    qkv_TC, batch = talk.step([(0, 0, 20)])
    cache = talk.cache
    tensors = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
    torch.library.opcheck(torch.ops.whet.paged_attention.default, (qkv_TC, *tensors, *batch, 0.25, 0))


def test_no_tokens() -> None:
    cache = KvCache.empty(1, 2, 16, torch.bfloat16)
    nobody = torch.zeros(0, dtype=torch.int32)
    batch = Batch(nobody, torch.zeros(1, dtype=torch.int32), nobody, torch.zeros(0, 1, dtype=torch.int32))
    assert attend(torch.empty(0, 8 * 16), cache, batch, 0.25).shape == (0, 4 * 16)


Broken = Callable[[Tensor, KvCache, Batch], tuple[Tensor, KvCache, Batch, int]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, c, b: (x.int(), c, b, 0), "float32, bfloat16 or float16"),
        (lambda x, c, b: (x[:, :-32], c, b, 0), "heads of 16"),
        (lambda x, c, b: (x, c, b, -1), "not -1"),
        (lambda x, c, b: (x, c, b._replace(context_len=b.context_len * 100), 0), "positions are not theirs"),
        (lambda x, c, b: (x, c, b._replace(block_tables=b.block_tables - 9), 0), "a table names others"),
        (lambda x, c, b: (x, KvCache(c.keys.transpose(1, 2), c.values), b, 0), "the cache's|heads of"),
        (lambda x, c, b: (x[:4], c, b, 0), "4 tokens of 1 sequences"),
        (lambda x, c, b: (x, c, b._replace(block_tables=b.block_tables + 2), 0), "blocks 0 to 1"),
        (lambda x, c, b: (x, c, b._replace(block_tables=b.block_tables[:, :0].contiguous()), 0), "short for 20 tokens"),
        (lambda x, c, b: (x, c, b._replace(positions=b.positions + 1), 0), "the positions are not theirs"),
        (lambda x, c, b: (x, c, b._replace(positions=b.positions.long()), 0), "int32"),
        (lambda x, c, b: (x, c, b._replace(query_start=b.query_start + 1), 0), "query_start rises"),
        (lambda x, c, b: (x, KvCache(c.keys, c.values[:1]), b, 0), "the cache's values"),
        (lambda x, c, b: (x, KvCache(c.keys, c.values, torch.ones(2, 1, 16)), b, 0), "in int8, and only there"),
    ],
)
def test_what_does_not_fit_is_refused(change: Broken, says: str) -> None:
    talk = Conversations([20], (2, 2, 16), torch.float32)
    qkv_TC, batch = talk.step([(0, 0, 20)])
    qkv_TC, cache, batch, window = change(qkv_TC, talk.cache, batch)
    with pytest.raises(InputsError, match=says):
        attend(qkv_TC, cache, batch, 0.25, window)
