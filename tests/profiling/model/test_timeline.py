"""Memory of the process over time, against psutil and allocations of a known size; fragmentation by hand."""

import contextlib
import mmap
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.memory import ResidentMemory
from whet.profiling.model.timeline import Fragmentation, Timeline, cuda_fragmentation, fragmentation

MB = 10**6


@contextlib.contextmanager
def held_memory() -> Iterator[None]:
    """Hold 40 MB of pages of their own, whatever malloc keeps of what earlier tests freed."""
    with mmap.mmap(-1, 40 * MB) as block:
        for start in range(0, 40 * MB, 4096):
            block[start] = 1  # so that every page is touched
        yield


def test_resident_memory_is_psutils() -> None:
    read = ResidentMemory()
    assert read() == pytest.approx(psutil.Process().memory_info().rss, rel=0.01)
    read.close()
    assert read() == pytest.approx(psutil.Process().memory_info().rss, rel=0.01)


def test_the_peak_is_within_five_percent_of_what_was_held() -> None:
    timeline = Timeline()
    timeline.start()
    before = psutil.Process().memory_info().rss
    with held_memory():
        held = psutil.Process().memory_info().rss
    use = timeline.stop()
    assert held - before >= 39 * MB
    assert use.peak_bytes == pytest.approx(held, rel=0.05)
    assert use.is_peak_exact
    assert use.end_bytes < held - 30 * MB
    assert use.device == "cpu"


def test_points_rise_with_time_and_are_told_to_whoever_asks() -> None:
    seen: list[int] = []
    timeline = Timeline(interval_s=0.001, seen=seen.append)
    timeline.start()
    with held_memory():
        time.sleep(0.05)
    use = timeline.stop()
    assert len(use.points) >= 5
    assert [p.at_s for p in use.points] == sorted(p.at_s for p in use.points)
    assert max(p.rss_bytes for p in use.points) - use.start_bytes > 35 * MB
    assert seen == [p.rss_bytes for p in use.points]
    assert all(p.cuda_allocated_bytes is None for p in use.points)


def test_the_gpu_is_the_one_of_the_thread_that_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has a current GPU of its own: the one that samples would read the first GPU's memory."""
    main = threading.get_ident()
    held = {0: 5, 1: 700}

    def read(index: int | None = None) -> int:
        return held[index if index is not None else 1 if threading.get_ident() == main else 0]

    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, read)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1 if threading.get_ident() == main else 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda index=None: None)
    timeline = Timeline("cuda", interval_s=0.001)
    timeline.start()
    time.sleep(0.05)
    use = timeline.stop()
    assert len(use.points) > 3
    assert {point.cuda_allocated_bytes for point in use.points} == {700}
    assert use.peak_bytes == 700


def test_points_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.profiling.model.timeline._MOST_POINTS", 10)
    timeline = Timeline(interval_s=0.0005)
    timeline.start()
    time.sleep(0.1)
    assert len(timeline.stop().points) <= 11


def segment(*blocks: tuple[int, str]) -> dict[str, object]:
    return {
        "total_size": sum(size for size, _ in blocks),
        "allocated_size": sum(size for size, state in blocks if state == "active_allocated"),
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


def test_fragmentation_by_hand() -> None:
    found = fragmentation(
        [
            segment((512, "active_allocated"), (1024, "inactive"), (512, "active_allocated")),
            segment((3072, "inactive")),
            segment((100, "active_awaiting_free")),
        ]
    )
    assert found == Fragmentation(5220, 1024, 4096, 3072, 3)
    assert found.fragmented == 0.25


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 1000), st.sampled_from(["inactive", "active_allocated"]))), max_size=5)
)
def test_fragmentation_is_a_share(segments: list[list[tuple[int, str]]]) -> None:
    found = fragmentation([segment(*blocks) for blocks in segments])
    assert 0 <= found.fragmented < 1
    assert found.allocated_bytes + found.free_bytes == found.reserved_bytes


def test_no_cuda_has_no_fragmentation() -> None:
    if cuda_fragmentation() is not None:
        pytest.skip("a CUDA device is in use")
    assert cuda_fragmentation() is None
