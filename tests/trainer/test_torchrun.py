"""whet train as torchrun starts it: killed and gone on with, restarted by torchrun itself, on two machines' agents."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from rank_runs import UNEVEN, check_same, log, written
from tiny_run import config
from tiny_run import trained as trained_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SBATCH = Path(__file__).parents[2] / "examples" / "slurm_train.sbatch"


def started(words: list[str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen([*TORCHRUN, *words], stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def step_of(out: Path) -> int:
    file = out / "log.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.is_file() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def killed(agent: subprocess.Popen[bytes], out: Path, rank: int, step: int) -> None:
    """Kill a process once a step is logged."""
    while step_of(out) < step:
        assert agent.poll() is None
        time.sleep(0.001)
    ranks = [one for one in psutil.Process(agent.pid).children() if one.environ().get("RANK") == str(rank)]
    os.kill(ranks[0].pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the run that one process makes."""
    place = tmp_path_factory.mktemp("torchrun")
    trained_alone(config(place, out=str(place / "alone"), steps=40, **UNEVEN))
    return place


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_run_is_told_and_goes_on_in_one_process(alone: Path, rank: int) -> None:
    file = written(alone, f"killed{rank}", steps=40, **UNEVEN)
    out, output = alone / f"killed{rank}", alone / f"killed{rank}.txt"
    words = ["--standalone", "--nproc-per-node", "2", "-m", "whet", "train", str(file), "parallel.zero_stage=2"]
    agent = started(words, output)
    killed(agent, out, rank, 11)
    began = time.monotonic()
    assert agent.wait(60) != 0 and time.monotonic() - began < 30
    told = [line for line in output.read_text().splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and f"rank {rank} on " in told[0], output.read_text()
    trained_alone(config(alone, out=str(out), steps=40, **UNEVEN), resume=True)
    check_same(out, alone / "alone", steps=40)


def test_torchrun_restarts_a_run_which_goes_on_by_itself(alone: Path) -> None:
    file = written(alone, "restarted", steps=40, **UNEVEN)
    out, output = alone / "restarted", alone / "restarted.txt"
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "-m", "whet", "train", str(file)]
    agent = started([*words, "parallel.zero_stage=3"], output)
    killed(agent, out, 1, 11)
    assert agent.wait(200) == 0, output.read_text()
    assert "going on after step" in output.read_text()
    check_same(out, alone / "alone", steps=40)


def test_the_example_for_slurm_trains_on_two_machines(alone: Path) -> None:
    """Two agents on this machine stand for them, started as srun would."""
    file = written(alone, "slurm", steps=40, **UNEVEN)
    tools = alone / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\necho 127.0.0.1\n")
    (tools / "torchrun").write_text(f'#!/bin/sh\nexec {" ".join(TORCHRUN)} "$@"\n')
    (tools / "srun").write_text('#!/bin/sh\n"$@" & first=$!\n"$@" && wait $first\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables: dict[str, Any] = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "two",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "PROCESSES_PER_NODE": "1",
        "PORT": str(port),
        "CONFIG": str(file),
    }
    done = subprocess.run(["bash", str(SBATCH)], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check_same(alone / "slurm", alone / "alone", steps=40)
    assert len(log(alone / "slurm")) == 40
