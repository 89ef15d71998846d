"""Memory that grows is told from memory that does not, on series that are known."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.profiling.step.growth import MemorySeries, growth, heap_reader

MIB = 2**20


def series(held: list[float]) -> list[tuple[int, int]]:
    return [(step, 100 * MIB + int(value)) for step, value in enumerate(held)]


@given(slope=st.integers(2048, 10 * MIB), num_steps=st.integers(40, 400))
def test_a_steady_leak_is_found_with_its_slope(slope: int, num_steps: int) -> None:
    found = growth("heap", series([slope * step for step in range(num_steps)]))
    assert found is not None
    assert found.is_growing
    assert found.slope_bytes == pytest.approx(slope, rel=1e-6)
    assert found.ci95_bytes[0] <= found.slope_bytes * (1 + 1e-9)
    assert found.ci95_bytes[1] >= found.slope_bytes * (1 - 1e-9)


@given(seed=st.integers(0, 10**6), num_steps=st.integers(30, 600))
def test_batches_of_unequal_size_are_no_leak(seed: int, num_steps: int) -> None:
    drawn = random.Random(seed)
    found = growth("heap", series([drawn.choice([1, 2, 3, 5]) * MIB for _ in range(num_steps)]))
    assert found is None or not found.is_growing


def test_false_alarms_on_pure_noise_are_rare() -> None:
    drawn = random.Random(0)
    alarms = 0
    for _ in range(500):
        found = growth("heap", series([drawn.gauss(0, MIB) for _ in range(200)]))
        alarms += found is not None and found.is_growing
    assert alarms <= 500 * 0.025 + 10


def test_a_leak_is_found_beneath_batches_of_unequal_size() -> None:
    drawn = random.Random(1)
    found = growth("heap", series([drawn.random() * MIB + 50_000 * step for step in range(300)]))
    assert found is not None
    assert found.is_growing
    assert found.ci95_bytes[0] < 50_000 < found.ci95_bytes[1]


def test_a_garbage_collectors_saw_is_no_leak() -> None:
    found = growth("heap", series([(step % 23) * MIB for step in range(400)]))
    assert found is not None
    assert not found.is_growing


def test_one_jump_is_no_leak_however_late() -> None:
    for at in (10, 100, 150, 190):
        found = growth("heap", series([0.0] * at + [64 * MIB] * (200 - at)))
        assert found is not None
        assert not found.is_growing, at


def test_growth_that_ends_with_the_warm_up_is_no_leak() -> None:
    found = growth("heap", series([min(step, 50) * MIB for step in range(300)]))
    assert found is not None
    assert not found.is_growing


def test_a_leak_that_begins_half_way_is_found() -> None:
    found = growth("heap", series([max(0, step - 150) * MIB for step in range(300)]))
    assert found is not None
    assert found.is_growing


def test_numbers_kept_for_a_log_are_no_leak() -> None:
    found = growth("heap", series([64 * step for step in range(2000)]))
    assert found is not None
    assert not found.is_growing


@pytest.mark.parametrize("num_steps", [0, 1, 2, 15])
def test_too_few_steps_tell_nothing(num_steps: int) -> None:
    assert growth("heap", series([MIB * step for step in range(num_steps)])) is None


def test_a_long_series_stays_short_and_keeps_its_slope() -> None:
    held = 0

    def read() -> int:
        return held

    time = 0
    watched = MemorySeries("heap", read, now=lambda: time)
    for step in range(20_000):
        held = 3000 * step
        watched.sample(step)
        time += 10**9
    assert len(watched.points) < 512
    found = growth("heap", watched.points)
    assert found is not None
    assert found.slope_bytes == pytest.approx(3000, rel=0.02)
    assert found.is_growing


def test_looking_takes_its_share_of_the_time_and_no_more() -> None:
    time = 0
    looks = 0

    def read() -> int:
        nonlocal time, looks
        looks += 1
        time += 10**6  # a millisecond, a long time to look
        return 0

    watched = MemorySeries("heap", read, now=lambda: time)
    for step in range(10_000):
        watched.sample(step)
        time += 10**7  # steps of 10 ms
        assert (looks - 49) * 1e6 <= 10**6 + 0.00051 * time
    assert len(watched.points) >= 80


def test_a_leak_in_a_hundred_steps_is_found_though_looks_are_dear() -> None:
    time = 0

    def read() -> int:
        nonlocal time
        time += 10**6
        return 100_000 * (time // 10**7)

    watched = MemorySeries("heap", read, now=lambda: time)
    for step in range(100):
        watched.sample(step)
        time += 10**7
    found = growth("heap", watched.points)
    assert found is not None
    assert found.is_growing
    assert found.last_step >= 40


def test_the_heap_reader_sees_what_torch_allocates() -> None:
    read = heap_reader()
    if read is None:
        pytest.skip("this system's malloc cannot be asked what it holds")
    before = read()
    held = [torch.empty(1000, dtype=torch.uint8) for _ in range(1000)]
    large = torch.empty(8 * MIB, dtype=torch.uint8)
    grown = read() - before
    assert grown >= 8 * MIB + 1000 * 1000
    assert grown < 12 * MIB
    del held, large
    assert read() - before < MIB
