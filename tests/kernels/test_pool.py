"""The kernels' pool of threads: regions, barriers, sleep, several callers, a change of threads, a fork."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from whet.kernels import build
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind

CHECKS = Path(__file__).with_name("pool_checks.cpp")
KERNELS = Path(build.__file__).parent
THREADS = pytest.mark.parametrize("num_threads", [1, 2, 3, 4])


def compiled(target: Path, *flags: str) -> Path:
    command = ["c++", "-O1", "-std=c++17", "-pthread", "-Wall", "-Werror", f"-I{KERNELS}", *flags, str(CHECKS), "-o"]
    subprocess.run([*command, str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("pool") / "checks.so", "-shared", "-fPIC")))


@THREADS
def test_every_item_is_done_once(checks: ctypes.CDLL, num_threads: int) -> None:
    for count in (0, 1, 3, 100):
        assert checks.items_are_done_once(num_threads, 100, 7, count) == 0


@THREADS
def test_barriers_order_writes(checks: ctypes.CDLL, num_threads: int) -> None:
    assert checks.barriers_order_writes(num_threads, 1000) == 0


@THREADS
def test_callers_take_turns(checks: ctypes.CDLL, num_threads: int) -> None:
    assert checks.callers_take_turns(num_threads, 3, 50) == 0


@THREADS
def test_sleeping_threads_wake_for_work_and_for_the_end(checks: ctypes.CDLL, num_threads: int) -> None:
    assert checks.sleepers_wake(num_threads, 10) == 0


@pytest.mark.slow
def test_no_data_race(tmp_path: Path) -> None:
    program = compiled(tmp_path / "checks", "-g", "-fsanitize=thread", "-DWITH_MAIN")
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def test_the_number_of_threads_may_change_between_calls() -> None:
    library = build.library()
    x_MK, weights = torch.randn(9, 512), pack_weights(torch.randn(640, 512), Kind.BF16)
    wanted = linear(x_MK, weights)
    try:
        for num_threads in (4, 1, 2, 3, 1, 2):
            library.set_threads(num_threads)
            for _ in range(5):
                assert torch.equal(linear(x_MK, weights), wanted)
    finally:
        library.set_threads(torch.get_num_threads())


def test_a_child_of_fork_makes_threads_of_its_own() -> None:
    code = """
import os, signal, torch
from whet.kernels.build import library
from whet.kernels.linear import linear, pack_weights
from whet.kernels.linear.layout import Kind

library().set_threads(3)
x, weights = torch.randn(9, 512), pack_weights(torch.randn(640, 512), Kind.BF16)
before = linear(x, weights)
child = os.fork()
if child == 0:
    signal.alarm(30)  # a child that waits for its parent's threads ends by this
    os._exit(0 if torch.equal(linear(x, weights), before) else 1)
status = os.waitpid(child, 0)[1]
assert torch.equal(linear(x, weights), before)
print("child:", os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "child: 0\n"
