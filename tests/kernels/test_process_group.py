"""Groups of processes: their sums against float64, their calls in any timing, and what happens when one is missing."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from whet.kernels import build
from whet.kernels.process_group.structs import GroupSizesStruct

CHECKS = Path(__file__).with_name("group_checks.cpp")
KERNELS = Path(build.__file__).parent
_RUN = """
import ctypes, json, mmap, sys
library, memory, size, function, *rest = json.loads(sys.argv[1])
functions = ctypes.CDLL(library)
mapped = mmap.mmap(memory, size)
sizes = ctypes.create_string_buffer(bytes(rest[0]))
digest = ctypes.c_uint64()
more = [ctypes.byref(digest)] if function == "sums" else []
at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
wrong = getattr(functions, function)(sizes, ctypes.c_void_p(at), *rest[1:], *more)
print(json.dumps([wrong, digest.value]))
"""


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("group") / "checks.so"
    command = ["c++", "-O2", "-std=c++17", "-pthread", "-Wall", "-Werror", f"-I{KERNELS}", "-shared", "-fPIC"]
    subprocess.run([*command, str(CHECKS), "-o", str(target)], check=True)
    return target


def sizes_of(
    rank: int, num_ranks: int, *, hidden: int = 100, rows: int = 3, timeout_s: float = 60.0
) -> GroupSizesStruct:
    return GroupSizesStruct(
        rank=rank,
        num_ranks=num_ranks,
        hidden=hidden,
        vocab=10,
        most_rows=rows,
        most_tokens=1,
        most_ints=16,
        timeout_s=timeout_s,
    )


def in_processes(checks: Path, function: str, sizes: list[GroupSizesStruct], *more: int) -> list[list[int]]:
    """Run a function of the checks in a process for each rank, over memory that they share."""
    functions = ctypes.CDLL(str(checks))
    functions.bytes_of.restype = ctypes.c_size_t
    num_bytes = functions.bytes_of(ctypes.byref(sizes[0]))
    memory = os.memfd_create("test")
    try:
        os.ftruncate(memory, num_bytes)
        words = [[str(checks), memory, num_bytes, function, list(bytes(one)), *more] for one in sizes]
        running = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", _RUN, json.dumps(one)], pass_fds=(memory,), stdout=subprocess.PIPE
            )
            for one in words
        ]
        said = [process.communicate(timeout=120)[0] for process in running]
    finally:
        os.close(memory)
    assert [process.returncode for process in running] == [0] * len(sizes)
    return [json.loads(one) for one in said]


@pytest.mark.parametrize(
    ("num_ranks", "num_threads", "rounds"), [(2, 1, 20_000), (2, 2, 500), (3, 1, 500), (4, 1, 500)]
)
def test_sums_are_those_of_float64_and_the_same_bits_for_all(
    checks: Path, num_ranks: int, num_threads: int, rounds: int
) -> None:
    sizes = [sizes_of(rank, num_ranks) for rank in range(num_ranks)]
    found = in_processes(checks, "sums", sizes, num_threads, rounds)
    assert [wrong for wrong, _ in found] == [0] * num_ranks
    assert len({digest for _, digest in found}) == 1


def test_large_sums(checks: Path) -> None:
    found = in_processes(checks, "sums", [sizes_of(rank, 2, hidden=1000, rows=24) for rank in range(2)], 1, 20)
    assert [wrong for wrong, _ in found] == [0, 0]
    assert found[0] == found[1]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("pause_us", [0, 6000])  # beyond the time after which a process sleeps between calls
def test_every_call_is_computed_once_by_all(checks: Path, num_ranks: int, pause_us: int) -> None:
    sizes = [sizes_of(rank, num_ranks) for rank in range(num_ranks)]
    found = in_processes(checks, "calls", sizes, 60 if pause_us else 3000, pause_us)
    assert [wrong for wrong, _ in found] == [0] * num_ranks


@pytest.fixture
def alone(checks: Path) -> tuple[ctypes.CDLL, "ctypes.Array[ctypes.c_char]"]:
    """The checks in this process, and memory for a group."""
    functions = ctypes.CDLL(str(checks))
    functions.bytes_of.restype = ctypes.c_size_t
    mapped = mmap.mmap(-1, functions.bytes_of(ctypes.byref(sizes_of(0, 2))))
    return functions, (ctypes.c_char * len(mapped)).from_buffer(mapped)


def test_a_process_that_does_not_come_in_time_has_failed(
    alone: tuple[ctypes.CDLL, "ctypes.Array[ctypes.c_char]"],
) -> None:
    functions, memory = alone
    assert functions.in_vain(ctypes.byref(sizes_of(0, 2, timeout_s=0.2)), memory) == 1 + 1


def test_nobody_waits_for_a_process_that_is_said_to_have_ended(
    alone: tuple[ctypes.CDLL, "ctypes.Array[ctypes.c_char]"],
) -> None:
    functions, memory = alone
    sizes = sizes_of(0, 2)

    def tell() -> None:
        time.sleep(0.2)
        functions.fail(ctypes.byref(sizes), memory, 1)

    threading.Thread(target=tell).start()
    assert functions.in_vain(ctypes.byref(sizes), memory) == 1 + 1
