"""Change how glibc's malloc behaves in this process, from within."""

import ctypes
import sys

_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # names of malloc.h
_NEVER = 2**31 - 1  # the largest value that mallopt takes
_PAD_BYTES = 64 * 2**20


def has_glibc() -> bool:
    """Return whether this process's malloc is glibc's."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt") and not _is_replaced()


def keep_all_memory() -> None:
    """Have malloc take large blocks from its own heap, and give no freed memory back to the system."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_TOP_PAD, _PAD_BYTES)


def give_back() -> None:
    """Give what malloc holds free back to the system, so that a peak counts only what is used."""
    if has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_replaced() -> bool:
    """Return whether another allocator is loaded in its place."""
    libc = ctypes.CDLL(None)
    return any(hasattr(libc, name) for name in ("mallctl", "je_malloc_conf", "tc_version", "mi_version"))
