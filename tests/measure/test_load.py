"""The load beside a measurement: what counts as a disturbance, and whether the kernel's counters are read rightly."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.measure import load
from whet.measure.load import MAX_WAITED_LONG, NO_LOAD, Load, Meter, Observed, Reading, cause_of, quiet_blocks, total

SPIN = "import time\nend = time.perf_counter() + 20\nwhile time.perf_counter() < end: pass"


def test_a_second_process_on_the_same_cores_disturbs() -> None:
    found = Load(seconds=1.0, cores=2, foreign_s=1.0, waited_s=0.6)
    assert found.cause == "other processes used 1.0 of 2 cores and made it wait for 60% of the time"
    assert not found.is_quiet


def test_a_browser_in_the_background_does_not_disturb() -> None:
    assert Load(seconds=1.0, cores=2, foreign_s=0.3, waited_s=0.04).is_quiet
    assert Load(seconds=1.0, cores=8, foreign_s=1.0, waited_s=0.01).is_quiet


def test_threads_that_wait_for_each_other_are_no_load() -> None:
    """A model whose two thread pools compete shows run delay; other processes use nothing."""
    assert Load(seconds=1.0, cores=2, foreign_s=0.01, waited_s=0.9).is_quiet


def test_a_quiet_core_beside_a_busy_one_is_not_quiet() -> None:
    """A model on one thread waits for nobody while another process holds the other core, and must not win by that."""
    assert not Load(seconds=1.0, cores=2, foreign_s=1.0, waited_s=0.0).is_quiet


def test_bursts_disturb_a_short_block_and_not_seconds_of_typical_calls() -> None:
    found = Load(seconds=2.0, cores=2, foreign_s=0.5, waited_s=0.3)
    assert found.cause
    assert found.cause_beyond(MAX_WAITED_LONG) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            Load(seconds=1.0, cores=2, stolen_s=0.4),
            "the hypervisor gave its cores to others for 20% of the time (steal)",
        ),
        (Load(seconds=1.0, cores=2, throttled_s=0.3), "the container's CPU quota stopped it for 30% of the time"),
        (Load(seconds=1.0, cores=2, heat_s=0.5), "the processor was throttled for heat for 50% of the time"),
    ],
)
def test_what_else_takes_the_cores_away_is_named(found: Load, words: str) -> None:
    assert found.cause == words


def test_a_little_steal_is_let_pass() -> None:
    assert Load(seconds=1.0, cores=2, stolen_s=0.08).is_quiet


def test_single_ticks_in_a_short_block_are_no_load_where_nobody_else_is_there() -> None:
    """Others' time is counted in ticks of 10 ms: one of them looks like a tenth of a core over 100 ms."""
    ticks = [0.01 if i % 10 == 0 else 0.0 for i in range(40)]
    loads = [Load(seconds=0.1, cores=2, foreign_s=tick, waited_s=0.05) for tick in ticks]
    assert quiet_blocks(loads) == [True] * 40
    busy = [Load(seconds=0.1, cores=2, foreign_s=0.05, waited_s=0.05) for _ in loads]
    assert quiet_blocks(busy) == [False] * 40


def test_only_the_disturbed_blocks_of_a_measurement_are_told() -> None:
    loads = [Load(seconds=0.1, cores=2, foreign_s=0.08 * (i % 2), waited_s=0.06 * (i % 2)) for i in range(6)]
    assert quiet_blocks(loads) == [True, False] * 3
    assert cause_of(loads).startswith("other processes used 0.4 of 2 cores")


@given(st.lists(st.builds(Load, st.floats(0.01, 10), st.just(2), *[st.floats(0, 10)] * 5), max_size=8))
def test_blocks_add_up(loads: list[Load]) -> None:
    summed = total(loads)
    assert summed.seconds == pytest.approx(sum(found.seconds for found in loads))
    assert summed.foreign_s == pytest.approx(sum(found.foreign_s for found in loads))
    assert summed + NO_LOAD == summed


def test_what_the_measurement_used_itself_is_not_foreign() -> None:
    before = Reading(at_s=10.0, cores=2, own_s=5.0, busy_s=50.0)
    later = Reading(at_s=12.0, cores=2, own_s=8.5, busy_s=54.0)
    assert before.until(later).foreign_s == pytest.approx(0.5)
    assert before.until(later).seconds == 2.0


def seen_in_half_a_second(used: Callable[[Reading, Reading], float], read: Meter) -> bool:
    """Whether more than 0.1 s were used, in one of 40 attempts: on a busy machine, a process gets its turn late."""
    for _ in range(40):
        before = read()
        time.sleep(0.5)
        if used(before, read()) > 0.1:
            return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's counters")
def test_a_process_outside_the_measurement_is_seen_and_one_of_its_own_is_not() -> None:
    read = Meter()
    spinner = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        # Not yet known as a child of this process.
        assert seen_in_half_a_second(lambda before, later: before.until(later).foreign_s, read)
        read.look_around()
        assert seen_in_half_a_second(lambda before, later: later.own_s - before.own_s, read)
    finally:
        spinner.kill()
        spinner.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's counters")
def test_a_process_that_is_started_between_readings_is_the_measurements_own() -> None:
    """As the workers that a loader starts anew for each pass; each is counted once, also after its end."""
    read = Meter()
    before = read()
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        alive = read()
        child.stdin.close()
        child.wait()
    after = read()
    assert alive.own_s - before.own_s > 0.28
    assert after.own_s - alive.own_s < 0.2
    assert after.own_s - before.own_s > 0.28
    assert child.pid not in read._own


def test_a_measured_process_counts_its_own_time_once() -> None:
    """Its parent, the root of the measurement, lists it among its children."""
    code = (
        "import os, time\nfrom whet.measure.load import Meter\nread = Meter()\nbefore = read()\n"
        "used = time.process_time()\nwhile time.process_time() < used + 0.3: pass\nafter = read()\n"
        "assert os.getpid() not in read._own and os.getppid() in read._own\nprint(after.own_s - before.own_s)"
    )
    environment = {**os.environ, load.ROOT: str(os.getpid())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 0.28 < float(done.stdout) < 0.45


def test_run_delay_is_that_of_all_threads() -> None:
    def by_hand() -> float:
        tasks = Path("/proc/self/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9

    least = by_hand()
    found = Meter()().waited_s
    assert least - 1e-6 <= found <= by_hand() + 1e-6


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's counters")
def test_a_reading_is_cheap_beside_a_block() -> None:
    """Instructions, not time: a reading opens no file that it has opened before."""
    read = Meter()
    read()
    opened: list[object] = []
    original = load.os.open
    load.os.open = lambda *args: opened.append(args) or original(*args)  # type: ignore[assignment]
    try:
        read()
    finally:
        load.os.open = original
    assert not opened


def test_what_a_test_pretends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(load.PRETENDED, "1.5")
    with Observed() as seen:
        time.sleep(0.05)
    assert seen.load.foreign_cores == pytest.approx(1.5)
    monkeypatch.setenv(load.PRETENDED, "0")
    with Observed() as seen:
        time.sleep(0.05)
    assert seen.load.is_quiet
