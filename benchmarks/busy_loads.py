"""What else runs while verdicts are measured: background loads, as processes outside the measurement.

python benchmarks/busy_loads.py NAME SECONDS      # one of them, by hand
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "src" / "whet" / "kernels" / "library.cpp"

LOADS = {  # name: the processes that make it
    "nothing": (),
    "a quarter of a core, in bursts": ("bursts",),
    "one core, spinning": ("spin",),
    "one core, a compiler": ("compile",),
    "two cores, spinning": ("spin", "spin"),
    "two cores, a second torch process": ("torch",),
}
QUIET, QUARTER = tuple(LOADS)[:2]
_BURST_S = (0.02, 0.25)
_PAUSE = 3  # times as long as a burst


@contextlib.contextmanager
def running(load: str) -> Iterator[None]:
    """Have a load run meanwhile. It is there when the block begins, and ended with it."""
    processes = [
        subprocess.Popen([sys.executable, __file__, kind, "100000"], start_new_session=True) for kind in LOADS[load]
    ]
    try:
        if processes:
            time.sleep(4.0)  # torch is imported, and the compiler is at work
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def bursts(seconds: float) -> None:
    """Use a quarter of a core in bursts of a browser's length."""
    order = random.Random()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        burst_s = order.uniform(*_BURST_S)
        spin(burst_s)
        time.sleep(_PAUSE * burst_s)


def compile_again_and_again(seconds: float) -> None:
    compiler = next(found for name in ("c++", "g++", "clang++") if (found := shutil.which(name)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        words = [compiler, "-O3", "-std=c++17", "-DWHET_ISA=0", "-pthread", "-S", "-o", os.devnull, str(KERNELS)]
        subprocess.run(words, stderr=subprocess.DEVNULL, check=False)


def multiply(seconds: float) -> None:
    import torch

    x = torch.randn(1024, 1024)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        x @ x


KINDS = {"spin": spin, "bursts": bursts, "compile": compile_again_and_again, "torch": multiply}

if __name__ == "__main__":
    name, seconds = sys.argv[1:]
    if name in LOADS:
        with running(name):
            time.sleep(float(seconds))
    else:
        KINDS[name](float(seconds))
