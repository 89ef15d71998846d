"""Limits of containers, in both versions of control groups, at the root and in a group below it."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from whet.measure import cgroup
from whet.measure.cgroup import cpu_quota, cpu_stat_files, free_memory, memory_limit, throttled_s


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "own", "cores", "num_bytes"),
    [
        ({}, "", None, None),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, "0::/\n", None, None),
        ({"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, "0::/\n", 2, 2**30),
        (
            {"cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"},
            "0::/a/b\n",
            4,
            None,
        ),
        ({"a/memory.max": "4096\n", "a/b/memory.max": "8192\n"}, "0::/a/b\n", None, 4096),
        (
            {
                "cpu/cpu.cfs_quota_us": "50000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            "4:memory:/\n1:cpu:/\n",
            1,
            None,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "1:cpu:/\n", None, None),
        (
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "memory/job/memory.limit_in_bytes": "123456\n",
            },
            "3:cpu,cpuacct:/job\n2:memory:/job\n",
            3,
            123456,
        ),
        ({"cpu.max": "nonsense\n", "memory.max": "\n"}, "nonsense\n", None, None),
    ],
)
def test_reads_limits(
    tmp_path: Path, files: dict[str, str], own: str, cores: int | None, num_bytes: int | None
) -> None:
    root = tmp_path / "cgroup"
    write(root, files)
    (tmp_path / "self").write_text(own)
    assert cpu_quota(root, tmp_path / "self") == cores
    assert memory_limit(root, tmp_path / "self") == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("usage_usec 5\nnr_periods 7\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),  # version 2
        ("nr_periods 7\nnr_throttled 3\nthrottled_time 1500000000\n", 1.5),  # version 1
        ("", 0.0),
    ],
)
def test_throttling_in_either_version(text: str, seconds: float) -> None:
    assert throttled_s(text) == seconds


def test_only_files_that_count_throttling_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.stat").write_text("nr_throttled 0\nthrottled_time 0\n")
    (tmp_path / "self").write_text("")
    assert cpu_stat_files(tmp_path, tmp_path / "self") == [tmp_path / "cpu" / "cpu.stat"]


@pytest.mark.parametrize(("limit", "free"), [(None, 1000), (400, 400), (4000, 1000)])
def test_free_memory_is_within_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int | None, free: int) -> None:
    monkeypatch.setattr(cgroup, "memory_limit", lambda: limit)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    assert free_memory() == free
