"""Timing on a clock that only calls move: what is measured is then known exactly."""

import gc
import statistics
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.measure import clock, device
from whet.measure.clock import Measurement, measure_calls, measure_pairs, warm_up
from whet.measure.load import Reading


class FakeTime:
    """A clock that stands still but for calls that take time; it keeps a log of them."""

    def __init__(self) -> None:
        self.ns = 0
        self.log: list[str] = []

    def perf_counter_ns(self) -> int:
        return self.ns

    def perf_counter(self) -> float:
        return self.ns / 1e9

    def call(self, name: str, *milliseconds: float) -> Callable[[], None]:
        """A call that takes each of the times in turn, and the last one from then on."""
        left = list(milliseconds)

        def run() -> None:
            self.log.append(name)
            self.ns += round((left.pop(0) if len(left) > 1 else left[0]) * 1e6)

        return run

    def blocks(self) -> list[str]:
        """The log with repetitions taken together."""
        return [name for i, name in enumerate(self.log) if i == 0 or self.log[i - 1] != name]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    stand_in = SimpleNamespace(perf_counter_ns=time.perf_counter_ns, perf_counter=time.perf_counter)
    monkeypatch.setattr(clock, "time", stand_in)
    return time


def test_a_steady_call_is_timed_exactly(fake: FakeTime) -> None:
    found = measure_calls([fake.call("a", 2)], budget_s=0.1, num_samples_per_call=8)
    assert set(found.samples_s) == {0.002}
    assert found.latency_ms == pytest.approx(2)
    assert found.throughput == pytest.approx(4000)
    assert 0.1 <= sum(found.samples_s) <= 0.11


def test_the_first_slow_calls_are_not_in_the_samples(fake: FakeTime) -> None:
    found = measure_calls([fake.call("a", 900, 50, 20, 10, 5, 2)], budget_s=1)
    assert set(found.samples_s) == {0.002}


def test_a_slow_call_is_made_min_calls_times(fake: FakeTime) -> None:
    assert len(measure_calls([fake.call("a", 500)], budget_s=0.1, min_calls=7).samples_s) == 7


def test_calls_are_taken_in_turn_in_whole_rounds(fake: FakeTime) -> None:
    found = measure_calls([fake.call("a", 10), fake.call("b", 30), fake.call("c", 80)], budget_s=0.2, min_calls=5)
    assert found.samples_s == pytest.approx((0.010, 0.030, 0.080) * 2)
    assert found.latency_ms == pytest.approx(40)
    assert fake.log == ["a", "b", "c"] * (len(fake.log) // 3)


def test_latency_is_not_moved_by_an_outlier() -> None:
    found = Measurement((1.0, 2.0, 1.0, 2.0, 9.0, 2.0), num_calls=2)
    assert found.latency_ms == pytest.approx(1500)


def test_percentiles_are_of_raw_samples_and_p99_wants_many() -> None:
    few = Measurement(tuple(float(i) for i in range(101)))
    assert few.p90_ms == pytest.approx(90e3)
    assert few.p99_ms is None
    many = Measurement(tuple(float(i) for i in range(1001)))
    assert many.p99_ms == pytest.approx(990e3)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=50))
def test_latency_of_one_call_is_the_median(samples: list[float]) -> None:
    assert Measurement(tuple(samples)).latency_ms == pytest.approx(statistics.median(samples) * 1e3)


def test_pairs_of_the_same_code_are_equal(fake: FakeTime) -> None:
    pairs = measure_pairs([fake.call("a", 2)], [fake.call("b", 2)], budget_s=0.5, num_pairs=6)
    first, second = list(pairs.first), list(pairs.second)
    assert first == second == [0.002] * 6


def test_pairs_show_a_gain_exactly(fake: FakeTime) -> None:
    pairs = measure_pairs([fake.call("a", 6)], [fake.call("b", 2)], budget_s=0.5)
    first, second = list(pairs.first), list(pairs.second)
    assert [a / b for a, b in zip(first, second, strict=True)] == pytest.approx([3] * 8)


def test_the_order_within_pairs_is_random_but_both_are_in_each(fake: FakeTime) -> None:
    orders = {}
    for seed in range(3):
        warm = len(fake.log)
        measure_pairs([fake.call("a", 2)], [fake.call("b", 2)], budget_s=1, num_pairs=16, seed=seed)
        names = fake.log[warm:]
        # 40 calls fit into a block with those thrown away; each run of one name is one block, or two in a row.
        runs: list[str] = []
        previous, count = "", 0
        for name in [*names, ""]:
            if name != previous:
                runs += [previous] * round(count / 19)
                previous, count = name, 0
            count += 1
        blocks = runs[-32:]
        assert all(set(blocks[i : i + 2]) == {"a", "b"} for i in range(0, 32, 2))
        orders[seed] = tuple(blocks[::2])
        assert 3 <= blocks[::2].count("a") <= 13
    assert len(set(orders.values())) == 3


def test_a_seed_fixes_the_order(fake: FakeTime) -> None:
    logs = []
    for _ in range(2):
        fake.log.clear()
        measure_pairs([fake.call("a", 2)], [fake.call("b", 2)], budget_s=1, seed=5)
        logs.append(list(fake.log))
    assert logs[0] == logs[1]


def test_a_machine_that_slows_down_gives_no_gain_in_pairs(monkeypatch: pytest.MonkeyPatch, fake: FakeTime) -> None:
    def call() -> None:
        fake.ns += round(2e6 * (1 + fake.ns / 20e9))  # 5 % slower each second

    pairs = measure_pairs([call], [call], budget_s=2, num_pairs=16)
    first, second = list(pairs.first), list(pairs.second)
    assert first[-1] > 1.05 * first[0]  # the machine did slow down
    assert statistics.geometric_mean(first) / statistics.geometric_mean(second) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("batches_ms", [(10, 90), (5, 10, 20, 40, 80), (1, 1, 1, 100)])
def test_unequal_batches_show_the_gain_of_each(fake: FakeTime, batches_ms: tuple[float, ...]) -> None:
    slow = [fake.call("a", 5 * ms) for ms in batches_ms]
    fast = [fake.call("b", ms) for ms in batches_ms]
    pairs = measure_pairs(slow, fast, budget_s=1)
    first, second = list(pairs.first), list(pairs.second)
    assert [a / b for a, b in zip(first, second, strict=True)] == pytest.approx([5] * 8)


def test_every_batch_is_among_the_pairs(fake: FakeTime) -> None:
    names = "abcdefgh"
    measure_pairs([fake.call(n, 50) for n in names], [fake.call("x", 50)] * 8, budget_s=0)
    assert all(fake.log.count(name) > 3 for name in names)


def test_warm_up_ends_when_times_settle(fake: FakeTime) -> None:
    calls = warm_up([fake.call("a", 100, 80, 60, 40, 30, 20, 10, 10)], budget_s=60)
    assert calls == len(fake.log) < 40


def test_warm_up_ends_with_its_budget_where_times_never_settle(fake: FakeTime) -> None:
    warm_up([fake.call("a", *(10 * 1.1**i for i in range(60)))], budget_s=1.5)
    assert 1.5 <= fake.perf_counter() < 3


def test_warm_up_calls_each_once_without_a_budget(fake: FakeTime) -> None:
    assert warm_up([fake.call("a", 1), fake.call("b", 1)], budget_s=0) == 2
    assert fake.log == ["a", "b"]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_off_while_timing_and_as_before_after(enabled: bool) -> None:
    seen = []
    if not enabled:
        gc.disable()
    try:
        measure_calls([lambda: seen.append(gc.isenabled())], budget_s=0)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert not any(seen)


def test_the_collector_is_back_after_a_call_that_raises() -> None:
    def fail() -> None:
        raise RuntimeError("a call that raises")

    with pytest.raises(RuntimeError, match="a call that raises"):
        measure_pairs([fail], [fail])
    assert gc.isenabled()


def test_calls_run_without_gradients() -> None:
    seen = []
    measure_calls([lambda: seen.append(torch.is_grad_enabled())], budget_s=0)
    assert not any(seen)
    assert torch.is_grad_enabled()


def test_a_real_call_is_timed_in_seconds() -> None:
    import time

    found = measure_calls([lambda: time.sleep(0.02)], budget_s=0.1)
    assert 19 <= found.latency_ms <= 2000


class FakeMachine:
    """Another process holds one of two cores in some blocks of the measurement: those that `busy` tells, from 0 on."""

    def __init__(self, time: FakeTime, busy: Callable[[int], bool]) -> None:
        self._time = time
        self._busy = busy
        self._num_readings = 0
        self._foreign_s = 0.0
        self._last_s = 0.0

    def __call__(self) -> Reading:
        now_s = self._time.perf_counter()
        if self._num_readings % 2 and self._busy(self._num_readings // 2):
            self._foreign_s += now_s - self._last_s
        self._num_readings += 1
        self._last_s = now_s
        return Reading(now_s, 2, busy_s=self._foreign_s, waited_s=self._foreign_s)


def slow_while_busy(fake: FakeTime, busy: Callable[[float], bool]) -> Callable[[], None]:
    """A call of 2 ms, or of 50 ms at moments when another process has a core."""

    def run() -> None:
        fake.ns += round((50 if busy(fake.perf_counter()) else 2) * 1e6)

    return run


def test_disturbed_blocks_are_measured_again(fake: FakeTime) -> None:
    machine = FakeMachine(fake, lambda block: block % 3 == 1)
    found = measure_calls([fake.call("a", 2)], budget_s=0.5, read=machine)
    assert found.cause == ""
    assert 0.5 <= sum(found.samples_s) <= 0.65  # of quiet time
    assert found.load.foreign_s == pytest.approx(found.load.seconds / 3, rel=0.3)


def test_what_a_disturbed_block_took_does_not_count(fake: FakeTime) -> None:
    busy_from_s, busy_to_s = 0.3, 0.6
    call = slow_while_busy(fake, lambda now_s: busy_from_s < now_s < busy_to_s)
    last_s = 0.0
    foreign_s = 0.0

    def read() -> Reading:
        nonlocal last_s, foreign_s
        now_s = fake.perf_counter()
        foreign_s += max(0.0, min(now_s, busy_to_s) - max(last_s, busy_from_s))
        last_s = now_s
        return Reading(now_s, 2, busy_s=foreign_s, waited_s=foreign_s)

    found = measure_calls([call], budget_s=1.0, read=read)
    assert set(found.samples_s) == {0.002}
    assert found.cause == ""


def test_a_machine_that_stays_busy_is_told(fake: FakeTime) -> None:
    machine = FakeMachine(fake, lambda block: True)
    found = measure_calls([fake.call("a", 2)], budget_s=0.5, read=machine)
    assert found.cause == "other processes used 1.0 of 2 cores and made it wait for 100% of the time"
    assert 1.5 <= sum(found.samples_s) <= 1.7  # three times as long, and then no more


def test_pairs_in_which_either_block_is_disturbed_are_measured_again(fake: FakeTime) -> None:
    machine = FakeMachine(fake, lambda block: block in (1, 4, 5))
    found = measure_pairs([fake.call("a", 6)], [fake.call("b", 2)], budget_s=0.5, num_pairs=4, read=machine)
    assert found.cause == ""
    assert found.first == (0.006,) * 4
    assert found.second == (0.002,) * 4
    busy = measure_pairs([fake.call("a", 6)], [fake.call("b", 2)], num_pairs=4, read=FakeMachine(fake, lambda _: True))
    assert busy.cause
    assert len(busy.first) == 12


def test_the_gpu_that_is_waited_for_is_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.synchronize waits for the current GPU alone."""
    seen = []
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    for name in ("cuda:1", "cpu"):
        device.use_device_of(SimpleNamespace(device=torch.device(name)))
    assert seen == [torch.device("cuda:1")]


def test_each_sample_tells_which_call_it_was(fake: FakeTime) -> None:
    """The n-th call takes n milliseconds, so the time itself is the number; disturbed blocks leave gaps."""
    machine = FakeMachine(fake, lambda block: block == 2)
    found = measure_calls([fake.call("step", *range(1, 500))], budget_s=0.5, read=machine)
    assert found.cause == ""
    assert [round(seconds * 1e3) - 1 for seconds in found.samples_s] == list(found.numbers)
    gaps = [b - a for a, b in zip(found.numbers, found.numbers[1:], strict=False) if b - a > 1]
    assert len(gaps) == 1
