"""Say which malloc this process uses, and change how glibc's behaves, from within."""

import ctypes
import os
import platform
import re
import sys
from pathlib import Path

PRELOAD = "LD_PRELOAD"  # the environment variable with the libraries that are loaded before all others

_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2  # names of malloc.h
_NEVER = 2**31 - 1  # the largest value that mallopt takes
_SYMBOLS = {"jemalloc": ("mallctl", "je_malloc_conf"), "tcmalloc": ("tc_version",), "mimalloc": ("mi_version",)}
_PAD_BYTES = 64 * 2**20


class _Place(ctypes.Structure):
    """Hold what dladdr says of an address: Dl_info of dlfcn.h."""

    base: int | None
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def has_glibc() -> bool:
    """Return whether this process's malloc is glibc's."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt") and not _in_use()


def is_loaded(library: str) -> bool:
    """Return whether this process uses another malloc in place of the system's: "jemalloc" or "tcmalloc"."""
    return library in _in_use()


def find(library: str) -> Path | None:
    """Return the file of another malloc, "jemalloc" or "tcmalloc", where it is installed.

    Such a library must be loaded before everything else: `LD_PRELOAD=FILE python ...`.
    """
    folders = [Path(sys.prefix) / "lib", *map(Path, ("/usr/local/lib", "/usr/lib64", "/usr/lib"))]
    own = f"{platform.machine()}-linux-gnu"  # the folder of this processor's libraries on Debian
    stems = [f"lib{library}"]
    if library == "tcmalloc":  # the smaller one, which Debian installs alone
        stems.append("libtcmalloc_minimal")
    names = [f"{place}{stem}.so*" for stem in stems for place in ("", f"{own}/")]
    found = (path for folder in folders for name in names for path in sorted(folder.glob(name)))
    return next(found, None)


def preloaded() -> list[str]:
    """Return the libraries that LD_PRELOAD names in this process's environment."""
    return [name for name in re.split("[ :]", os.environ.get(PRELOAD, "")) if name]


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


def _in_use() -> list[str]:
    """Return the names of the allocators that this process allocates with in place of the system's.

    A library may be loaded without being used: `malloc` is then the function of another file.
    """
    loaded = {name: address for name in _SYMBOLS if (address := _first_of(_SYMBOLS[name])) is not None}
    own, system = _file_of(_first_of(("malloc",))), _file_of(_first_of(("getpid",)))
    files = {name: _file_of(address) for name, address in loaded.items()}
    if own is None or own in files.values():
        return [name for name, file in files.items() if file == own]
    return [] if own == system else list(files)  # the program itself may hold a jump to the malloc that is used


def _first_of(symbols: tuple[str, ...]) -> int | None:
    """Return the address of the first symbol that this process has; None where it has none of them."""
    process = ctypes.CDLL(None)
    found = (getattr(process, symbol) for symbol in symbols if hasattr(process, symbol))
    return next((ctypes.cast(one, ctypes.c_void_p).value for one in found), None)


def _file_of(address: int | None) -> int | None:
    """Return where the loaded file that holds an address begins in memory; None where that is not known."""
    find_place = getattr(ctypes.CDLL(None), "dladdr", None)
    place = _Place()
    if find_place is None or address is None or not find_place(ctypes.c_void_p(address), ctypes.byref(place)):
        return None
    return place.base
