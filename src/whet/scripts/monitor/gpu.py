"""Read the utilisation and memory of NVIDIA GPUs, from NVML."""

import os
import re
from typing import Any

from whet.errors import how_to_install, reason
from whet.scripts.monitor import metrics
from whet.scripts.monitor.series import Cell

_NO_PACKAGE = f"nvidia-ml-py is not installed: {how_to_install('nvidia')}"


class GpuCollector:
    """Measure the visible GPUs. If there are none, `unavailable` says why, and `collect` returns nothing.

    `names` is by the driver's number of the GPU.
    """

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}
        self.names: dict[int, str] = {}
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        try:
            import pynvml
        except ImportError:
            self.unavailable["GPU"] = _NO_PACKAGE
            return
        try:
            pynvml.nvmlInit()  # type: ignore[no-untyped-call]
        except pynvml.NVMLError as error:
            self.unavailable["GPU"] = f"the driver shows no NVIDIA GPU ({reason(error)})"
            return
        self._nvml = pynvml
        self._find()

    def collect(self) -> dict[str, Cell]:
        """Return the cells of every GPU. A figure that a GPU does not provide is only named in `unavailable`."""
        cells: dict[str, Cell] = {}
        for number, handle in self._handles.items():
            try:
                share = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                cells[f"{metrics.GPU}:{number}"] = Cell.of(float(share))
            except self._nvml.NVMLError as error:
                self.unavailable[f"GPU {number} utilisation"] = reason(error)
            try:
                used = self._nvml.nvmlDeviceGetMemoryInfo(handle).used
                cells[f"{metrics.GPU_MEMORY}:{number}"] = Cell.of(int(used))
            except self._nvml.NVMLError as error:
                self.unavailable[f"GPU {number} memory"] = reason(error)
        return cells

    def close(self) -> None:
        """Release the driver."""
        if self._nvml is not None:
            self._handles = {}
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _find(self) -> None:
        nvml = self._nvml
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                if is_visible(number, _text(nvml.nvmlDeviceGetUUID(handle)), os.environ.get("CUDA_VISIBLE_DEVICES")):
                    self._handles[number] = handle
                    self.names[number] = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as error:
            self.unavailable["GPU"] = reason(error)
        if not self._handles and not self.unavailable:
            self.unavailable["GPU"] = "CUDA_VISIBLE_DEVICES hides every GPU"


def is_visible(number: int, uuid: str, visible_devices: str | None) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES makes a GPU visible.

    The driver's numbers equal CUDA's only if CUDA_DEVICE_ORDER is PCI_BUS_ID, or if all GPUs are of the same kind.

    Args:
        number: The driver's number.
        uuid: The GPU's UUID, as "GPU-…".
        visible_devices: The value of the variable, or None. A value with anything but numbers and UUIDs hides no GPU.
    """
    if visible_devices is None:
        return True
    words = [word.strip() for word in visible_devices.split(",") if word.strip()]
    if not all(re.fullmatch(r"-?\d+|GPU-[0-9a-fA-F-]+", word) for word in words):
        return True
    if "-1" in words:  # CUDA ignores what follows
        words = words[: words.index("-1")]
    return any(word == str(number) or (word.startswith("GPU-") and uuid.startswith(word)) for word in words)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
