"""CPU and memory of process trees, against what psutil and the clock say of children made for it."""

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from whet.measure.cores import allowed_cores
from whet.scripts.monitor.process import ProcessCollector, _Tree

BUSY = "import sys; sys.stdout.write('x'); sys.stdout.flush()\nwhile True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def parent_of_a_busy_child() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    tree = psutil.Process(process.pid)
    yield tree
    for child in [*tree.children(recursive=True), tree]:
        child.kill()
    process.wait()
    process.stdout.close()


def test_a_grandchild_counts(parent_of_a_busy_child: psutil.Process) -> None:
    parent = parent_of_a_busy_child
    collector = ProcessCollector(parent.pid)
    child = parent.children()[0]
    before, began = child.cpu_times().user, time.monotonic()
    time.sleep(0.6)
    cells = collector.collect()
    used = (child.cpu_times().user - before) / (time.monotonic() - began) / len(allowed_cores())
    assert cells["cpu"].mean == pytest.approx(100 * used, rel=0.25)
    assert cells["rss_bytes"].mean == pytest.approx(parent.memory_info().rss + child.memory_info().rss, rel=0.1)


def test_psutil_lists_the_tree_where_the_kernel_does_not(parent_of_a_busy_child: psutil.Process) -> None:
    tree = _Tree(parent_of_a_busy_child.pid)
    listed = tree.pids()
    tree._has_list = False
    assert tree.pids() == listed
    assert len(listed) == 2


def test_a_process_that_has_ended_has_no_figures_rather_than_zeros() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    cells = ProcessCollector(done.pid).collect()
    assert "cpu" not in cells
    assert "rss_bytes" not in cells
    assert cells["machine_memory_bytes"].mean == pytest.approx(
        psutil.virtual_memory().total - psutil.virtual_memory().available, rel=0.2
    )
