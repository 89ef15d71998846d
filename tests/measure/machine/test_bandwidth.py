"""How fast memory is read, against torch's own reading of the same amount."""

import itertools
import time
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.measure.machine import bandwidth
from whet.measure.machine.bandwidth import default_buffer_bytes, non_increasing, read_bandwidth
from whet.measure.machine.cache import cache_dir, last_level_bytes

SIZE = 64 * 2**20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))


def sum_bandwidth() -> float:
    x = torch.ones(SIZE // 4)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        x.sum()
        best = min(best, time.perf_counter() - start)
    return SIZE / best


def test_agrees_with_sum_in_its_order_of_magnitude() -> None:
    found = read_bandwidth(1, buffer_bytes=SIZE, num_rounds=3)
    assert sum_bandwidth() / 10 < found.memory < sum_bandwidth() * 10
    assert found.notes == ()
    sizes = [size for size, _ in found.cached]
    assert sizes == [2**18 << i for i in range(8)]
    assert all(a >= b for (_, a), (_, b) in itertools.pairwise(found.cached))
    assert not list(cache_dir().iterdir())  # nothing is left of the compiling


@pytest.mark.parametrize(("compiler", "reason"), [("", "no C++ compiler found"), ("/bin/false", "/bin/false failed")])
def test_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, compiler: str, reason: str) -> None:
    monkeypatch.setattr("whet.measure.machine.bandwidth.shutil.which", lambda name: compiler)
    found = read_bandwidth(2, buffer_bytes=2**23, num_rounds=2)
    assert found.memory > 0
    (note,) = found.notes
    assert reason in note


def test_the_buffer_leaves_memory_to_others() -> None:
    assert default_buffer_bytes() <= psutil.virtual_memory().available / 3


def test_the_buffer_keeps_within_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "memory_limit", lambda: 256 * 2**20)
    assert default_buffer_bytes() <= 64 * 2**20


def test_more_threads_than_the_smallest_set_has_lines() -> None:
    found = read_bandwidth(1000, buffer_bytes=2**20, num_rounds=1)
    assert all(speed > 0 for _, speed in found.cached)


@given(st.dictionaries(st.integers(1, 2**40), st.floats(1.0, 1e12), min_size=1))
def test_never_rising(points: dict[int, float]) -> None:
    result = non_increasing(list(points.items()))
    assert [size for size, _ in result] == sorted(points)
    assert all(a >= b for (_, a), (_, b) in itertools.pairwise(result))
    assert all(speed == max(v for k, v in points.items() if k >= size) for size, speed in result)


def test_last_level_cache(tmp_path: Path) -> None:
    for i, size in enumerate(["48K", "2048K", "30M", "nonsense"]):
        path = tmp_path / f"index{i}" / "size"
        path.parent.mkdir()
        path.write_text(size + "\n")
    assert last_level_bytes(tmp_path) == 30 * 2**20
    assert last_level_bytes(tmp_path / "none") == 32 * 2**20


def test_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("WHET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "whet"
