"""A process that is killed at any moment leaves whole checkpoints, and no lock."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from saving_processes import Children
from small_states import check_step, names, state_of_step

from whet.errors import OutputError
from whet.trainer.checkpoints import Checkpoints, RunLock


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    running = Children()
    yield running
    running.close()


def test_whenever_a_process_is_killed_the_newest_checkpoint_is_whole(children: Children, tmp_path: Path) -> None:
    moments = random.Random(0)
    written = num_cut_off = 0
    for _ in range(20):
        later = moments.randint(1, 3)
        lines = children.start("save", tmp_path, f"copied {written + later}")
        assert f"resumed {written}" in lines  # from what was found after the last kill
        time.sleep(moments.uniform(0.0, 0.06))
        lines += children.kill()
        copied = max(int(line.split()[1]) for line in lines if line.startswith("copied"))
        num_cut_off += any(".partial-" in name for name in names(tmp_path))
        checkpoints = Checkpoints(tmp_path)
        found = checkpoints.newest()
        if found is None:
            assert copied <= 1
            continue
        assert found.skipped == ()
        assert found.step >= copied - 1  # at most the one that was being written is lost
        check_step(checkpoints.load(found.path), found.step)
        written = found.step
    assert written > 10
    assert num_cut_off > 0
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(written + 1, state_of_step(written + 1), wait=True)
    assert names(tmp_path) == ["run.lock", f"step-{written:08d}", f"step-{written + 1:08d}"]


def test_what_a_living_process_writes_is_not_removed(children: Children, tmp_path: Path) -> None:
    children.start("hold", tmp_path, "writing")
    partial = [name for name in names(tmp_path) if ".partial-" in name]
    assert len(partial) == 2  # the directory and its lock
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(6, state_of_step(6), wait=True)
        assert names(tmp_path) == [*partial, "step-00000006"]
        children.kill()
        checkpoints.save(7, state_of_step(7), wait=True)
    assert names(tmp_path) == ["step-00000006", "step-00000007"]


def test_a_second_run_in_a_directory_is_refused(children: Children, tmp_path: Path) -> None:
    children.start("lock", tmp_path, "locked")
    with pytest.raises(OutputError, match=rf"another run uses {tmp_path}: process {children.pid}, started 20\d\d-.*"):
        RunLock(tmp_path)
    children.kill()
    assert names(tmp_path) == ["run.lock"]
    with RunLock(tmp_path) as lock:  # a lock of a process that was killed is no obstacle
        with pytest.raises(OutputError, match=f"process {os.getpid()}, started"):
            RunLock(tmp_path)
        lock.release()
        RunLock(tmp_path).release()
    assert names(tmp_path) == []
