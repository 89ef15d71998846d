"""Use NVIDIA's management library (NVML), and find the driver's version with it or without it.

The version must be the same either way, since fingerprints depend on it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


@contextmanager
def nvml() -> Iterator[Any]:
    """Yield NVML for the length of the block, or None where nvidia-ml-py or a driver is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()  # type: ignore[no-untyped-call]
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()  # type: ignore[no-untyped-call]


def driver_version(kernel_module: Path = _KERNEL_MODULE) -> str:
    """Return the driver's version, as "550.54.15", from NVML or else from the kernel module; "" if neither knows."""
    return _from_nvml() or _from_kernel_module(kernel_module)


def _from_nvml() -> str:
    with nvml() as library:
        if library is None:
            return ""
        try:
            version = library.nvmlSystemGetDriverVersion()
        except library.NVMLError:
            return ""
        return version.decode() if isinstance(version, bytes) else str(version)


def _from_kernel_module(path: Path) -> str:
    """Read the version from a line as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ..."."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return found.group(1) if found else ""
