"""Take the memory that a model's weights are written into: private memory here, or that of a subclass."""

import contextlib
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.errors import MachineError

HUGE_PAGE = 2 * 2**20


class Place:
    """Give each weight private memory of its own.

    Attributes:
        wants_values: Whether weights are written into what `take` returns. They may be there already: then outlines
            are given in their place.
    """

    wants_values = True

    def take(self, num_bytes: int, *, is_matrix: bool = False) -> Tensor:
        """Return memory as uint8 [num_bytes], whose values are undefined if they are to be written.

        Raises:
            MachineError: There is not enough memory.
        """
        return large_pages(num_bytes) if is_matrix else torch.empty(num_bytes, dtype=torch.uint8)

    def keep(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of a tensor that lies contiguously in memory of this place."""
        kept = self.take(tensor.numel() * dtype.itemsize).view(dtype).view(tensor.shape)
        return kept.copy_(tensor) if self.wants_values else kept

    def prepared(self, make: Callable[[], Tensor], *shape: int) -> Tensor:
        """Return what `make` returns, of this shape; only an outline of it if its values are not wanted."""
        return make() if self.wants_values else outline(shape, torch.float32)

    def noted(self, name: str, compute: Callable[[], str]) -> str:
        """Return what is known of the weights by this name. `compute` needs their values."""
        return compute()


PRIVATE = Place()


def outline(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros of a shape that take no memory.

    Tensors on the device "meta" would do as well, but their operators import parts of PyTorch that take 75 MB.
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


def large_pages(num_bytes: int) -> Tensor:
    """Allocate uint8 [num_bytes], aligned to 2 MiB, in pages of that size if there are any: worth 10 % of bandwidth.

    Raises:
        MachineError: There is not enough memory.
    """
    size = -(-num_bytes // HUGE_PAGE) * HUGE_PAGE
    memory, start = reserve(size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE, start, size)
    return torch.frombuffer(memory, dtype=torch.uint8)[start : start + num_bytes]  # the tensor keeps the mapping


def reserve(size: int) -> tuple[mmap.mmap, int]:
    """Map private memory for `size` bytes, and return it with the place in it that is a multiple of 2 MiB.

    Raises:
        MachineError: There is not enough memory.
    """
    try:
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MachineError(f"no memory for {size / 2**20:.0f} MiB of weights") from error
    return memory, -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
