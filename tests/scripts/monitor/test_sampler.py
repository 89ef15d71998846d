"""The sampler: a collector that fails, and the memory that a long run takes."""

import tracemalloc

from made_runs import make_run

from whet.scripts.monitor.sampler import Sampler
from whet.scripts.monitor.series import Cell
from whet.scripts.monitor.steps import StepCounter


class Collector:
    """Gives another value each time, under a few keys. fails: from the second call on."""

    def __init__(self, *keys: str, fails: bool = False) -> None:
        self.unavailable = {"GPU": "no driver"}
        self.num_calls = 0
        self._keys = keys
        self._fails = fails

    def collect(self) -> dict[str, Cell]:
        self.num_calls += 1
        if self._fails and self.num_calls > 1:
            raise RuntimeError("the driver has gone")
        return {key: Cell.of(self.num_calls + 0.5) for key in self._keys}


def test_a_collector_that_fails_is_left_out_and_said() -> None:
    run, bad, good = make_run(), Collector("gpu_utilisation:0", fails=True), Collector("cpu")
    sampler = Sampler(run, [bad, good], StepCounter().take)
    for _ in range(4):
        sampler.sample()
    assert (bad.num_calls, good.num_calls) == (2, 4)
    assert set(run.latest()) == {"cpu"}
    assert run.notes() == ["Collector failed: the driver has gone"]


def test_memory_does_not_grow_with_the_run() -> None:
    run, counter = make_run(), StepCounter()
    keys = ("cpu", "rss_bytes", "gpu_utilisation:0", "gpu_memory_bytes:0")
    sampler = Sampler(run, [Collector(*keys)], counter.take)

    def go_on(num_samples: int) -> None:
        for i in range(num_samples):
            counter.add(0.01 + i % 100 * 1e-4, {"data_wait": 0.002, "forward": 0.004}, 8, 64)
            sampler.sample()

    go_on(1_500)  # the ring of 900 rows and the history of 512 are full
    tracemalloc.start()
    try:
        go_on(1_500)
        first = tracemalloc.get_traced_memory()[0]
        go_on(6_000)
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    assert run.num_rows == 9_000
    assert grown < 200_000  # bytes; kept one by one, 6,000 rows of these cells are twenty megabytes
    assert run.totals().num_steps == 9_000
