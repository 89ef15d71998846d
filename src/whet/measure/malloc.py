"""Say which malloc this process uses, and change how glibc's behaves, from within."""

import ctypes
import sys
from pathlib import Path

_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # names of malloc.h
_NEVER = 2**31 - 1  # the largest value that mallopt takes
_SYMBOLS = {"jemalloc": ("mallctl", "je_malloc_conf"), "tcmalloc": ("tc_version",), "mimalloc": ("mi_version",)}
_PAD_BYTES = 64 * 2**20


def has_glibc() -> bool:
    """Return whether this process's malloc is glibc's."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt") and not _loaded()


def is_loaded(library: str) -> bool:
    """Return whether this process uses another malloc in place of the system's: "jemalloc" or "tcmalloc"."""
    return library in _loaded()


def find(library: str) -> Path | None:
    """Return the file of another malloc, "jemalloc" or "tcmalloc", where it is installed.

    Such a library must be loaded before everything else: `LD_PRELOAD=FILE python ...`.
    """
    folders = [Path(sys.prefix) / "lib", *map(Path, ("/usr/local/lib", "/usr/lib64", "/usr/lib"))]
    names = [f"lib{library}.so*", f"*-linux-gnu/lib{library}.so*"]
    if library == "tcmalloc":  # the smaller one, which Debian installs alone
        names += ["libtcmalloc_minimal.so*", "*-linux-gnu/libtcmalloc_minimal.so*"]
    found = (path for folder in folders for name in names for path in sorted(folder.glob(name)))
    return next(found, None)


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


def _loaded() -> list[str]:
    """Return the names of the allocators that are loaded in its place."""
    libc = ctypes.CDLL(None)
    return [name for name, symbols in _SYMBOLS.items() if any(hasattr(libc, symbol) for symbol in symbols)]
