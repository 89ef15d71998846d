"""Read what PyTorch's CUDA allocator holds, if torch is loaded already. Nothing is loaded or initialised."""

import sys
from typing import Any

from whet.scripts.monitor import metrics
from whet.scripts.monitor.series import Cell

ALLOCATOR = "CUDA memory, fragmentation"  # the figures that are missing if CUDA is not in use


class AllocatorCollector:
    """Measure allocated memory, reserved memory and fragmentation of every GPU that this process has memory on."""

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}

    def collect(self) -> dict[str, Cell]:
        """Return the cells of every GPU in use; none before CUDA is initialised."""
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
    """Return the cells of one GPU from torch.cuda.memory_stats; none if nothing is reserved on it.

    Fragmentation is inactive_split_bytes over reserved_bytes. Inactive split bytes are free pieces of
    split blocks: they serve only requests that fit, and cannot be returned to the driver.
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
