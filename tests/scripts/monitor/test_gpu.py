"""NVML as it is with two GPUs, with none, and without the package: what is not there is said, and never a zero."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from whet.scripts.monitor.allocator import AllocatorCollector, cells_of
from whet.scripts.monitor.gpu import GpuCollector, is_visible


class NvmlError(Exception):
    pass


def nvml(num_gpus: int, *, fails: bool = False, has_utilisation: bool = True, tells_memory_of: int = 9) -> ModuleType:
    """A stand-in with the calls of nvidia-ml-py that are used."""
    module = ModuleType("pynvml")

    def init() -> None:
        if fails:
            raise NvmlError("Driver Not Loaded")

    def rates(handle: int) -> SimpleNamespace:
        if not has_utilisation:
            raise NvmlError("Not Supported")
        return SimpleNamespace(gpu=40 + handle)

    def memory(handle: int) -> SimpleNamespace:
        if handle >= tells_memory_of:
            raise NvmlError("Not Supported")
        return SimpleNamespace(used=(handle + 1) << 30)

    calls = {
        "NVMLError": NvmlError,
        "nvmlInit": init,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: num_gpus,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}{handle}ab".encode(),
        "nvmlDeviceGetName": lambda handle: f"Card {handle}",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": rates,
    }
    vars(module).update(calls)
    return module


def test_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    collector = GpuCollector()
    cells = collector.collect()
    assert {key: cell.mean for key, cell in cells.items()} == {
        "gpu_utilisation:0": 40,
        "gpu_memory_bytes:0": 1 << 30,
        "gpu_utilisation:1": 41,
        "gpu_memory_bytes:1": 2 << 30,
    }
    assert collector.names == {0: "Card 0", 1: "Card 1"}
    assert not collector.unavailable
    collector.close()
    assert collector.collect() == {}


def test_hidden_gpus_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert set(GpuCollector().names) == {1}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides every GPU" in GpuCollector().unavailable["GPU"]


def test_what_a_gpu_cannot_tell_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(1, has_utilisation=False))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    collector = GpuCollector()
    assert set(collector.collect()) == {"gpu_memory_bytes:0"}
    assert collector.unavailable == {"GPU 0 utilisation": "Not Supported"}


def test_a_gpu_that_does_not_tell_its_memory_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(2, tells_memory_of=0))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    collector = GpuCollector()
    assert set(collector.collect()) == {"gpu_utilisation:0", "gpu_utilisation:1"}
    assert set(collector.unavailable) == {"GPU 0 memory", "GPU 1 memory"}


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(0, fails=True))
    collector = GpuCollector()
    assert collector.collect() == {}
    assert "Driver Not Loaded" in collector.unavailable["GPU"]


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install 'torch-whet[nvidia]'" in GpuCollector().unavailable["GPU"]


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        *((setting, True) for setting in (None, "0,1", "GPU-ab", "MIG-ab/1/2", "none of these")),
        *((setting, False) for setting in ("1", "-1", "1,-1,0", "", "GPU-cd")),
    ],
)
def test_visible_devices(setting: str | None, visible: bool) -> None:
    assert is_visible(0, "GPU-ab12", setting) is visible


def test_fragmentation_from_known_figures() -> None:
    stats = {
        "reserved_bytes.all.current": 1000,
        "allocated_bytes.all.current": 700,
        "inactive_split_bytes.all.current": 250,
    }
    cells = {key: cell.mean for key, cell in cells_of(2, stats).items()}
    assert cells == {"cuda_reserved_bytes:2": 1000, "cuda_allocated_bytes:2": 700, "cuda_fragmentation:2": 25}
    assert cells_of(0, {}) == {}


def test_the_allocator_of_a_process_without_cuda() -> None:
    collector = AllocatorCollector()
    assert collector.collect() == {}
    assert collector.unavailable == {"CUDA memory, fragmentation": "this run has not used CUDA"}


@pytest.mark.gpu
def test_the_allocator_of_a_real_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    cells = AllocatorCollector().collect()
    assert cells["cuda_allocated_bytes:0"].mean == torch.cuda.memory_allocated()
    assert cells["cuda_reserved_bytes:0"].mean == torch.cuda.memory_reserved()
    assert 0 <= cells["cuda_fragmentation:0"].mean <= 100
    gpu = GpuCollector()
    assert gpu.collect()["gpu_memory_bytes:0"].mean >= held.nbytes
