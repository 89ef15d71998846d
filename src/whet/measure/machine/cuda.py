"""Measure how fast a GPU's memory can be read and written, as the better of a copy and a sum."""

import torch

from whet.measure.machine.bandwidth import non_increasing
from whet.measure.machine.gemm import best_s

_LARGEST = 4 * 2**30
_SMALLEST = 2 * 2**20


def cuda_bandwidth() -> tuple[float, tuple[tuple[int, float], ...]]:
    """Measure the bandwidth of the current GPU. A copy counts the bytes that it reads and those that it writes.

    Returns:
        Bytes/s far beyond the GPU's cache, and pairs of (bytes, bytes/s) for working sets that fit in the cache.
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    cache_bytes = int(getattr(properties, "L2_cache_size", 0))
    free_bytes, _ = torch.cuda.mem_get_info()
    size = max(_SMALLEST, min(_LARGEST, free_bytes // 4) // 4096 * 4096)
    memory = _bandwidth(size)
    points = []
    working_set = _SMALLEST
    while working_set <= min(cache_bytes, size // 4):
        points.append((working_set, max(memory, _bandwidth(working_set))))
        working_set *= 2
    return memory, non_increasing(points)


def _bandwidth(working_set: int) -> float:
    """Return the bytes/s of the better of two: reading the whole set, and copying one half into the other."""
    source, target = torch.ones(working_set // 4, device="cuda").chunk(2)
    whole = torch.ones(working_set // 4, device="cuda")
    copy = working_set / best_s(lambda: target.copy_(source), "cuda", 0.1)
    return max(copy, working_set / best_s(whole.sum, "cuda", 0.1))
