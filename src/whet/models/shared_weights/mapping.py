"""Map a file into memory, shared with other processes, at an address that suits large pages.

Python's mmap chooses no address, so the file is mapped over a part of private memory that is reserved for it.
"""

import contextlib
import ctypes
import mmap
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from whet.kernels.linear.places import reserve

_MAP_FIXED = 0x10
_MADV_COLLAPSE = 25  # Linux 6.1; Python does not name it
_FAILED = ctypes.c_void_p(-1).value
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def mapped(file: int, num_bytes: int, *, writable: bool) -> Tensor:
    """Map the first bytes of an open file, and return them as uint8 [num_bytes], at a multiple of 2 MiB.

    The tensor keeps the mapping, also once the file is closed. Unless it is `writable`, writing to it ends the process.

    Args:
        file: A file descriptor. The file must keep its size: reading beyond its end would end the process.

    Raises:
        OSError: The file cannot be mapped.
        MachineError: There are not enough addresses.
    """
    memory, start = reserve(num_bytes)
    whole = torch.frombuffer(memory, dtype=torch.uint8)[start : start + num_bytes]
    rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if _libc().mmap(whole.data_ptr(), num_bytes, rights, mmap.MAP_SHARED | _MAP_FIXED, file, 0) == _FAILED:
        _raise()
    return whole


def make_read_only(memory: Tensor) -> None:
    """Take from this process the right to write to what `mapped` returned."""
    if _libc().mprotect(memory.data_ptr(), memory.numel(), mmap.PROT_READ):
        _raise()


def join_pages(memory: Tensor) -> None:
    """Join small pages to large ones for all processes that map them, where the system can and does not forbid it.

    MADV_COLLAPSE does so for files in memory (tmpfs) whatever `shmem_enabled` says.
    """
    with contextlib.suppress(OSError):
        if "[never]" not in _ENABLED.read_text(encoding="ascii"):
            _libc().madvise(memory.data_ptr(), memory.numel(), _MADV_COLLAPSE)


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = (address, size, number, number, number, ctypes.c_int64), address
    libc.mprotect.argtypes = libc.madvise.argtypes = (address, size, number)
    return libc
