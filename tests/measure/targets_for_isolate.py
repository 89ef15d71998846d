"""What the tests of isolate call in child processes: each ends in its own way."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import distributed

from whet.errors import InputsError
from whet.measure.memory import TakenMemory, peak_rss_bytes
from whet.parallel.joining import joined


def add(a: float, b: float) -> dict[str, Any]:
    print("adding")
    return {"sum": a + b, "pid": os.getpid(), "path": os.environ["PYTHONPATH"]}


def ancestry() -> dict[str, Any]:
    parent = psutil.Process(os.getppid())
    return {
        "pid": os.getpid(),
        "parent": parent.pid,
        "num_children": len(parent.children()),
        "session": os.getsid(0),
        "random": random.random(),
    }


def user_error() -> dict[str, Any]:
    raise InputsError("the batch is upside down; turn it")


def kill_self() -> dict[str, Any]:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return {}


def read_null() -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def leave(code: int) -> dict[str, Any]:
    os._exit(code)


def hang(pids: str) -> dict[str, Any]:
    """Start two processes that sleep, one in a session of its own, write all process ids, and sleep."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    sleepers = [subprocess.Popen(sleep, start_new_session=own) for own in (False, True)]
    partial = Path(pids + ".partial")
    partial.write_text(" ".join(str(pid) for pid in (os.getpid(), *(s.pid for s in sleepers))))
    partial.replace(pids)
    time.sleep(600)
    return {}


def leave_a_process_behind() -> dict[str, Any]:
    return {"pid": subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid}


def share_memory(megabytes: int, workers: int) -> dict[str, Any]:
    """Forks that read what they inherited: each has all of it in its own resident memory."""
    held = np.ones(2**17 * megabytes)
    pids = []
    for _ in range(workers):
        pid = os.fork()
        if not pid:
            time.sleep(2)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return {"sum": float(held.sum())}


def hold_memory(megabytes: int) -> dict[str, Any]:
    held = [np.ones(2**17) for _ in range(megabytes)]
    time.sleep(60)
    return {"held": len(held)}


def sum_over_ranks(value: int) -> dict[str, Any]:
    """Meet the other processes of the group and add up everyone's value."""
    with joined() as ranks:
        total = torch.tensor([value])
        distributed.all_reduce(total)
        return {"rank": ranks.rank, "sum": int(total)}


def hang_or_fail(pids: str, fails: bool) -> dict[str, Any]:
    if fails:
        time.sleep(2)
        raise InputsError("this rank gives up")
    return hang(pids)


def taken(megabytes: int) -> dict[str, int]:
    """Compute with so much memory, and say how much this process took, with and without the pages of libraries."""
    torch.set_num_threads(1)  # each thread takes a stack
    memory, before = TakenMemory(), peak_rss_bytes()
    torch.ones(megabytes * 2**18).exp_().sum()
    return {"taken": memory.peak_bytes(), "resident": peak_rss_bytes() - before}
