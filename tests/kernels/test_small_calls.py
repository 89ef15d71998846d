"""A small call keeps to its own thread: the same results, bit for bit, as on the pool with any number of threads."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.dispatch import pointer
from whet.kernels.gated_mlp import gated_mlp, pack_mlp
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind
from whet.kernels.paged_attention import attend
from whet.kernels.paged_attention.cache import Batch, KvCache
from whet.kernels.sample import sample

Call = Callable[[slice], Tensor]  # the results of some rows
KINDS = list(Kind)


def linear_call(kernels: Library, kind: Kind) -> tuple[Call, int]:
    x_MK, weights = torch.randn(80, 256), pack_weights(torch.randn(210, 256), kind)
    return lambda rows: linear(x_MK[rows], weights), 80


def mlp_call(kernels: Library, kind: Kind) -> tuple[Call, int]:
    x_MK = torch.randn(80, 96)
    weights = pack_mlp(torch.randn(200, 96), torch.randn(200, 96), torch.randn(96, 200), kind)
    return lambda rows: gated_mlp(x_MK[rows], weights), 80


def norm_call(kernels: Library, kind: Kind) -> tuple[Call, int]:
    x_MD, weight_D = torch.randn(200, 600), torch.rand(600)

    def call(rows: slice) -> Tensor:
        part, y = x_MD[rows], torch.empty_like(x_MD[rows])
        kernels.functions.whet_rms_norm(pointer(part), None, pointer(weight_D), *part.shape, 1e-5, None, pointer(y))
        return y

    return call, 200


def sample_call(kernels: Library, kind: Kind) -> tuple[Call, int]:
    logits_RV, ones, none = torch.randn(40, 5000), torch.ones(40), torch.zeros(40, dtype=torch.int32)
    columns = (ones, none, ones * 0.9, ones * 0, torch.rand(40))
    return lambda rows: sample(logits_RV[rows], *(column[rows] for column in columns)), 40


def attention_call(kernels: Library, kind: Kind) -> tuple[Call, int]:
    """Each row is a sequence of its own, and all sequences share their earlier tokens."""
    cache = KvCache.empty(40, 2, 64, torch.float32)
    for tensor in (cache.keys, cache.values):
        tensor.copy_(torch.randn(tensor.shape))
    qkv_TC = torch.randn(16, 6 * 64)

    def call(rows: slice) -> Tensor:
        count = len(qkv_TC[rows])
        ends = torch.full((count,), 600, dtype=torch.int32)
        batch = Batch(ends - 1, torch.arange(count + 1).int(), ends, torch.arange(40).int().repeat(count, 1))
        return attend(qkv_TC[rows], cache, batch, 0.1)

    return call, 16


def cases() -> list[object]:
    by_kind = [
        pytest.param(made, kind, id=f"{made.__name__}-{kind.name}")
        for made in (linear_call, mlp_call)
        for kind in KINDS
    ]
    return [
        *by_kind,
        *(pytest.param(made, Kind.F32, id=made.__name__) for made in (norm_call, sample_call, attention_call)),
    ]


@pytest.mark.parametrize(("make", "kind"), cases())
def test_bit_equal_on_one_thread_and_on_the_pool(
    kernels: Library, make: Callable[[Library, Kind], tuple[Call, int]], kind: Kind
) -> None:
    """One row is small; all rows are not, nor is the half of them in most cases."""
    torch.manual_seed(0)
    call, num_rows = make(kernels, kind)
    alone = torch.cat([call(slice(row, row + 1)) for row in range(num_rows)])
    try:
        for num_threads in (1, 2, 3):
            kernels.set_threads(num_threads)
            assert torch.equal(call(slice(0, num_rows)), alone)
            assert torch.equal(call(slice(0, num_rows // 2)), alone[: num_rows // 2])
            assert torch.equal(call(slice(3, 5)), alone[3:5])
    finally:
        kernels.set_threads(torch.get_num_threads())


THREADS = """
import os, torch
from whet.kernels.build import library
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind

torch.set_num_threads(1)
calls = [
    (torch.randn(rows, 256), pack_weights(torch.randn(outputs, 256), Kind.S8))
    for rows, outputs in ((1, 16), {small}, {large})
]
library().set_threads(3)
before = len(os.listdir("/proc/self/task"))
for x, weights in calls:
    linear(x, weights)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize(
    ("small", "large"),
    [((61, 256), (62, 256)), ((1, 2000), (1, 2048))],
    ids=["8 million operations", "half a MiB"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_small_call_makes_and_wakes_no_thread(small: tuple[int, int], large: tuple[int, int]) -> None:
    code = THREADS.format(small=small, large=large)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "2"]
