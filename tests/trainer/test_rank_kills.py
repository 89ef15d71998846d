"""A run on several processes, any of which is killed at any moment, ends as if nothing had happened."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from killed_runs import _checkpoints as checkpoints
from killed_runs import _logged as logged
from killed_runs import _names as names
from many import Group
from rank_runs import UNEVEN, check_same, train_here, trained, written
from tiny_run import config
from tiny_run import trained as trained_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
STEPS, KILLS, ENDS_S = 60, 20, 30
PLANS = [(2, "parallel.zero_stage=2"), (3, "parallel.zero_stage=3"), (2, "parallel.zero_stage=1"), (3, "seed=0")]


def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    """Some of them fall into the writing of a checkpoint; each start has another number of processes and plan."""
    trained_alone(config(tmp_path, out=str(tmp_path / "alone"), steps=STEPS, **UNEVEN))
    file = written(tmp_path, "killed", steps=STEPS, **UNEVEN)
    out = tmp_path / "killed"
    moments, cut = random.Random(5), 0
    for number in range(KILLS):
        world_size, plan = PLANS[number % len(PLANS)]
        with Group(train_here, world_size, str(file), [plan], bool(checkpoints(out))) as group:
            later = logged(out) + moments.randint(0, 3)
            while logged(out) <= later and all(process.is_alive() for process in group.processes):
                time.sleep(0.0005)
            if number % 2:
                while not any(".partial-" in name for name in names(out)):
                    assert any(process.is_alive() for process in group.processes)
                    time.sleep(0.0002)
            else:
                time.sleep(moments.uniform(0, 0.1))
            cut += any(".partial-" in name for name in names(out))
            os.kill(group.processes[moments.randrange(world_size)].pid, signal.SIGKILL)
            began = time.monotonic()
            for process in group.processes:
                process.join(ENDS_S)
            assert not any(process.is_alive() for process in group.processes), "all end"
            assert time.monotonic() - began < ENDS_S
        if max((int(name.split("-")[1]) for name in checkpoints(out)), default=0) > STEPS - 8:
            break
    assert cut >= 3, "some kills fell into the writing of a checkpoint"
    trained(2, file, "parallel.zero_stage=2", resume=True)
    check_same(out, tmp_path / "alone", steps=STEPS)
