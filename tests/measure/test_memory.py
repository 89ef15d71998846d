"""Peaks against allocations of known size, in processes of their own: a peak belongs to a whole process."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from whet.measure import memory
from whet.measure.memory import cuda_peak_bytes, live_tensor_bytes, reset_peak_rss

MB = 2**20


STEPS = """
from whet.measure.memory import peak_rss_bytes, reset_peak_rss
import numpy as np
peaks = [peak_rss_bytes()]
untouched = np.empty(64 * 2**20)
peaks.append(peak_rss_bytes())
touched = np.ones(8 * 2**20)
peaks.append(peak_rss_bytes())
del touched
peaks.append(peak_rss_bytes())
peaks += [int(reset_peak_rss()), peak_rss_bytes()]
print(*peaks)
"""


def test_the_peak_is_what_was_touched_stays_and_starts_anew() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    before, untouched, touched, freed, could, anew = map(int, done.stdout.split())
    assert untouched - before < 8 * MB
    assert 60 * MB <= touched - untouched <= 72 * MB
    assert freed >= touched - MB  # Linux sums its counters up only now and then
    if could:
        assert 60 * MB <= freed - anew <= 72 * MB
    assert could or sys.platform != "linux" or not os.access("/proc/self/clear_refs", os.W_OK)


def test_the_reset_says_whether_it_worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "clear_refs")
    assert reset_peak_rss() is True
    assert (tmp_path / "clear_refs").read_text(encoding="ascii") == "5"  # the peak alone: proc_pid_clear_refs(5)
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no such folder" / "clear_refs")
    assert reset_peak_rss() is False


def test_a_storage_that_is_shared_counts_once() -> None:
    gc.collect()
    before = live_tensor_bytes()
    x = torch.zeros(1000)
    assert live_tensor_bytes() - before == 4000
    views = [x[:10], x.view(10, 100), x.detach(), torch.nn.Parameter(x)]
    assert live_tensor_bytes() - before == 4000
    y = x.clone().to(torch.float64)
    assert live_tensor_bytes() - before == 4000 + 8000
    del x, views
    gc.collect()
    assert live_tensor_bytes() - before == 8000
    assert y.numel() == 1000


def test_tensors_without_memory_count_nothing() -> None:
    gc.collect()
    before = live_tensor_bytes()
    meta = torch.zeros(1000, device="meta")
    with FakeTensorMode():
        fake = torch.zeros(1000)
    assert live_tensor_bytes() == before
    assert meta.shape == fake.shape


class Wrapper(torch.Tensor):
    """A tensor whose values lie in another one, as quantised weights do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError(function)


def test_a_wrapper_counts_as_what_it_holds() -> None:
    gc.collect()
    before = live_tensor_bytes()
    wrapper = Wrapper(torch.zeros(1000, dtype=torch.int8))
    assert live_tensor_bytes() - before == 1000
    assert wrapper.inner.dtype == torch.int8


def test_dead_proxies_do_no_harm() -> None:
    class Thing:
        pass

    thing = Thing()
    proxy = weakref.proxy(thing)
    del thing
    assert live_tensor_bytes() >= 0
    with pytest.raises(ReferenceError):
        _ = proxy.anything


def test_without_a_gpu_there_is_no_gpu_peak() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a GPU is in use")
    assert cuda_peak_bytes() is None


def test_the_allocators_peak_starts_anew_with_the_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What building a model took on a GPU is no part of what its calls take."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: seen.append("reset"))
    memory.reset_peak_rss()
    assert seen == ["reset"]
