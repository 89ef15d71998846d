"""What PyTorch's CUDA allocator holds, asked of a torch that is loaded already. Nothing is loaded or initialised."""

import sys
from typing import Any

from whet.monitor import metrics
from whet.monitor.series import Cell

ALLOCATOR = "CUDA memory, fragmentation"  # what is missing where CUDA is not in use


class AllocatorCollector:
    """Memory of tensors, memory reserved, and fragmentation, for every GPU that this process has memory on."""

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}

    def collect(self) -> dict[str, Cell]:
        """Cells of every GPU in use; none before CUDA is."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            self.unavailable[ALLOCATOR] = "this run has not used CUDA"
            return {}
        self.unavailable.clear()
        cells: dict[str, Cell] = {}
        for number in range(cuda.device_count()):
            cells |= cells_of(number, cuda.memory_stats(number))
        return cells


def cells_of(number: int, stats: dict[str, Any]) -> dict[str, Cell]:
    """Cells of one GPU from torch.cuda.memory_stats; none where nothing is reserved on it.

    Fragmentation is inactive_split_bytes over reserved_bytes: what lies free in pieces of split blocks, and so serves
    only requests that fit, and cannot be given back to the driver.
    """
    reserved = stats.get("reserved_bytes.all.current", 0)
    if not reserved:
        return {}
    split = stats.get("inactive_split_bytes.all.current", 0)
    return {
        f"{metrics.CUDA_RESERVED}:{number}": Cell.of(reserved),
        f"{metrics.CUDA_ALLOCATED}:{number}": Cell.of(stats.get("allocated_bytes.all.current", 0)),
        f"{metrics.CUDA_FRAGMENTATION}:{number}": Cell.of(100 * split / reserved),
    }
