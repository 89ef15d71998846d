"""The NVIDIA driver's version. Both ways give the same number, so that a fingerprint does not hang on an extra."""

import re
from pathlib import Path

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def driver_version(kernel_module: Path = _KERNEL_MODULE) -> str:
    """As "550.54.15": from NVML where nvidia-ml-py is installed, else from the kernel module; "" if neither knows."""
    return _from_nvml() or _from_kernel_module(kernel_module)


def _from_nvml() -> str:
    try:
        import pynvml
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()  # type: ignore[no-untyped-call]
    except pynvml.NVMLError:
        return ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()  # type: ignore[no-untyped-call]


def _from_kernel_module(path: Path) -> str:
    """From "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return found.group(1) if found else ""
